"""The seam between a model and the keys and values of its requests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Segment:
    """Consecutive tokens of one request in a batch: rows `start` to `start + count`, which stand behind
    `context` tokens whose keys and values are already cached in `blocks`."""

    start: int
    count: int
    context: int
    blocks: Ints


@dataclass(frozen=True)
class Batch:
    """The tokens of one step: `T` rows, first the prefill segments, then `D` rows of one token each.

    Args:
        tokens, positions: `[T]`.
        cache_slots: `[T]`, where in the cache each row's key and value belong (block · block size + offset).
        segments: the prefill part.
        decode_blocks: `[D, max blocks]`, block tables of the one-token rows.
        decode_lengths: `[D]`, tokens of those requests, the row's own included.
        last_rows: `[R]`, the row of each request's last token, whose logits are wanted.
        requests: `[R]`, which running request each of these is.
    """

    tokens: Ints
    positions: Ints
    cache_slots: Ints
    segments: tuple[Segment, ...]
    decode_blocks: Ints
    decode_lengths: Ints
    last_rows: Ints
    requests: Ints

    @property
    def decode_start(self) -> int:
        """The first one-token row."""
        return len(self.tokens) - len(self.decode_lengths)


class Attention(ABC):
    """Keeps keys and values, and attends. One instance serves all layers."""

    @abstractmethod
    def begin(self, batch: Batch) -> None:
        """Prepare what all layers of the step share."""

    @abstractmethod
    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store `k`, `v` and attend causally within each request.

        Args:
            layer: which layer's cache.
            q: `[T, heads, head_dim]`.
            k, v: `[T, kv heads, head_dim]`. Of all three, a token's row is contiguous.

        Returns:
            `[T, heads · head_dim]`.
        """
