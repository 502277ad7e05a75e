"""The logprobs of a step's tokens, as the engine sends them to the front ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TokenLogprobs:
    """Logprobs at one position. `tokens`: the token taken, then the most likely ones in descending order;
    `values`: their logprobs."""

    tokens: list[int]
    values: list[float]


@dataclass(frozen=True)
class StepLogprobs:
    """Natural logarithms of the model's own probabilities, before temperature, top_k, top_p and min_p.

    Args:
        ids: `[L]`, the requests that ask for them.
        tokens: `[L, 1 + k]`, the token taken, then the `k` most likely ones in descending order.
        values: `[L, 1 + k]`, their logprobs; `k` is the most that any request asks for.
        positions: `[L]`, where in its prompt each token is; None for tokens that were generated.
    """

    ids: NDArray[np.int64]
    tokens: NDArray[np.int32]
    values: NDArray[np.float32]
    positions: NDArray[np.int64] | None = None

    def where(self, mask: NDArray[np.bool_]) -> StepLogprobs:
        """The logprobs of the requests that `mask` `[L]` keeps."""
        positions = None if self.positions is None else self.positions[mask]
        return StepLogprobs(self.ids[mask], self.tokens[mask], self.values[mask], positions)

    def of_prompts(self) -> list[tuple[int, int, TokenLogprobs]]:
        """Request, position and logprobs of each token of prompts."""
        assert self.positions is not None
        tokens, values = self.tokens.tolist(), self.values.tolist()
        each = zip(self.ids.tolist(), self.positions.tolist(), tokens, values, strict=True)
        return [(id, position, TokenLogprobs(row, numbers)) for id, position, row, numbers in each]

    def of_requests(self) -> list[tuple[int, TokenLogprobs]]:
        """Request and logprobs of each token that was generated."""
        tokens, values = self.tokens.tolist(), self.values.tolist()
        each = zip(self.ids.tolist(), tokens, values, strict=True)
        return [(id, TokenLogprobs(row, numbers)) for id, row, numbers in each]
