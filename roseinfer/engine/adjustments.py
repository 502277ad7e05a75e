"""Adjusts logits before sampling: logit biases, penalties, and min_tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from roseinfer.batch import UNKNOWN, Ints
from roseinfer.request.params import SamplingParams
from roseinfer.scheduler.running import Running
from roseinfer.tensors import to_device

Floats = NDArray[np.float32]
#: Fields of SamplingParams.
_PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty")


@dataclass(frozen=True)
class Adjustments:
    """The adjustments of `A` requests in a step.

    Args:
        rows: `[A]`, the requests' rows in the step, ascending.
        tokens: `[A, L]`, prompt and generated tokens; UNKNOWN for one that the device has sampled and the
            host has not read. Entries from `lengths` on are not tokens.
        prompts, lengths: `[A]`, numbers of prompt tokens, and of all tokens.
        params: each request's settings.
        eos: the model's end-of-text tokens.
    """

    rows: Ints
    tokens: NDArray[np.int32]
    prompts: Ints
    lengths: Ints
    params: Sequence[SamplingParams]
    eos: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, running: Running, rows: Ints, lengths: Ints, adjusting: Ints, eos: tuple[int, ...]
    ) -> Adjustments:
        """The adjustments of the requests `rows[adjusting]`; `rows` and `lengths` `[R]`: the running rows of
        a step, and how many of their tokens each of its tokens follows."""
        running_rows, lengths = rows[adjusting], lengths[adjusting]
        requests = [running.request(row) for row in running_rows.tolist()]
        return cls(
            adjusting,
            running.tokens[running_rows, : int(lengths.max())],
            np.array([len(request.prompt) for request in requests]),
            lengths,
            [request.params for request in requests],
            eos,
        )

    def part(self, start: int, count: int) -> Adjustments | None:
        """The adjustments of `count` rows from `start` on; None where there are none."""
        first, end = np.searchsorted(self.rows, (start, start + count)).tolist()
        if first == end:
            return None
        part = slice(first, end)
        return Adjustments(
            self.rows[part] - start, self.tokens[part], self.prompts[part], self.lengths[part],
            self.params[part], self.eos,
        )  # fmt: skip

    def apply(self, logits: Tensor, newest: Tensor, *, fused: bool = False) -> Tensor:
        """A float32 copy of the step's logits `[R, vocab]` with the adjustments applied. `newest` `[R]`: the
        last token of each request that decodes, used where it is UNKNOWN; `fused`: with Triton's kernels."""
        adjusted, device = logits.to(torch.float32, copy=True), logits.device
        self._add_biases(adjusted)
        if any(params.penalizes for params in self.params):
            rows = to_device(self.rows, device)
            tokens, newest = to_device(self.tokens, device), newest[rows]
            if fused:
                from roseinfer.kernels.triton.penalties import penalize

                places = np.stack((self.rows, self.prompts, self.lengths)).astype(np.int32)
                penalties = np.stack([self._column(name) for name in _PENALTIES])
                arguments = to_device(places, device), to_device(penalties, device)
                penalize(adjusted, tokens, newest, *arguments)
            else:
                adjusted.index_copy_(0, rows, self._penalized(adjusted[rows], tokens.long(), newest))
        self._mask_ends(adjusted)
        return adjusted

    def _penalized(self, adjusted: Tensor, tokens: Tensor, newest: Tensor) -> Tensor:
        """Logits `[A, vocab]` of the requests with penalties applied."""
        tokens = torch.where(tokens == UNKNOWN, newest[:, None], tokens)
        place = torch.arange(tokens.shape[1], device=adjusted.device)
        is_token = place < to_device(self.lengths, adjusted.device)[:, None]
        generated = is_token & (place >= to_device(self.prompts, adjusted.device)[:, None])
        tokens = torch.where(is_token, tokens, tokens[:, :1])  # what is no token repeats the first
        counts = (
            torch.zeros_like(adjusted).scatter_add_(1, tokens, generated.to(adjusted.dtype)).gather(1, tokens)
        )
        repetition, frequency, presence = (
            to_device(self._column(name), adjusted.device)[:, None] for name in _PENALTIES
        )
        logits = adjusted.gather(1, tokens)
        logits = torch.where(logits > 0, logits / repetition, logits * repetition)
        logits -= frequency * counts
        logits -= presence * (counts > 0)
        return adjusted.scatter_(1, tokens, logits)  # a token that comes again gets the same logit again

    def _add_biases(self, logits: Tensor) -> None:
        biased = [at for at, params in enumerate(self.params) if params.logit_bias]
        if biased:
            tokens, values = zip(*(self.params[at].biases for at in biased), strict=True)
            rows = np.repeat(self.rows[biased], [len(ids) for ids in tokens])
            where = to_device(rows, logits.device), to_device(np.concatenate(tokens), logits.device)
            logits.index_put_(where, to_device(np.concatenate(values), logits.device), accumulate=True)

    def _mask_ends(self, logits: Tensor) -> None:
        """Set the logits of tokens that would end an answer before its `min_tokens` to -inf."""
        generated = (self.lengths - self.prompts).tolist()
        ends = [
            (at, token)
            for at, params in enumerate(self.params)
            if generated[at] < params.min_tokens
            for token in params.ends(self.eos)
            if token < logits.shape[1]  # a model's config may name an id outside its vocabulary
        ]
        if ends:
            at, token = (np.array(column) for column in zip(*ends, strict=True))
            logits[to_device(self.rows[at], logits.device), to_device(token, logits.device)] = -torch.inf

    def _column(self, name: str) -> Floats:
        return np.array([getattr(params, name) for params in self.params], dtype=np.float32)
