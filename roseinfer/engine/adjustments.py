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
    def of(cls, running: Running, rows: Ints, adjusting: Ints, eos: tuple[int, ...]) -> Adjustments:
        """The adjustments of the requests `rows[adjusting]`; `rows`: the running rows of a step."""
        own = rows[adjusting]
        lengths = running.length[own]
        requests = [running.request(row) for row in own.tolist()]
        return cls(
            adjusting,
            running.tokens[own, : int(lengths.max())],
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
        own = slice(first, end)
        return Adjustments(
            self.rows[own] - start, self.tokens[own], self.prompts[own], self.lengths[own], self.params[own],
            self.eos,
        )  # fmt: skip

    def apply(self, logits: Tensor, newest: Tensor) -> Tensor:
        """A float32 copy of the step's logits `[R, vocab]` with the adjustments applied. `newest` `[R]`: the
        last token of each request that decodes, used where it is UNKNOWN."""
        device, vocab = logits.device, logits.shape[-1]
        rows = to_device(self.rows, device)
        own = logits[rows].float()
        self._add_biases(own)
        tokens = to_device(self.tokens, device).long()
        tokens = torch.where(tokens == UNKNOWN, newest[rows][:, None], tokens)
        place = torch.arange(tokens.shape[1], device=device)
        known = place < to_device(self.lengths, device)[:, None]
        generated = known & (place >= to_device(self.prompts, device)[:, None])
        nowhere = tokens.new_full((), vocab)  # an extra column, dropped below
        counts = own.new_zeros(len(own), vocab + 1)
        counts.scatter_add_(
            1, torch.where(generated, tokens, nowhere), torch.ones_like(tokens, dtype=own.dtype)
        )
        seen = torch.zeros_like(counts, dtype=torch.bool)
        seen.scatter_(1, torch.where(known, tokens, nowhere), torch.ones_like(known))
        counts, seen = counts[:, :vocab], seen[:, :vocab]
        repetition = self._column("repetition_penalty", device)
        own = torch.where(seen, torch.where(own > 0, own / repetition, own * repetition), own)
        own -= self._column("frequency_penalty", device) * counts
        own -= self._column("presence_penalty", device) * (counts > 0)
        self._mask_ends(own)
        return logits.to(torch.float32, copy=True).index_copy_(0, rows, own)

    def _add_biases(self, own: Tensor) -> None:
        biases = [(at, *bias) for at, params in enumerate(self.params) for bias in params.logit_bias]
        if biases:
            at, token = (
                to_device(np.array(column), own.device) for column in list(zip(*biases, strict=True))[:2]
            )
            value = to_device(np.array([bias for *_, bias in biases], dtype=np.float32), own.device)
            own.index_put_((at, token), value, accumulate=True)

    def _mask_ends(self, own: Tensor) -> None:
        """Set the logits of tokens that would end an answer before its `min_tokens` to -inf."""
        made = (self.lengths - self.prompts).tolist()
        ends = [
            (at, token)
            for at, params in enumerate(self.params)
            if made[at] < params.min_tokens
            for token in params.ends(self.eos)
            if token < own.shape[1]  # a model's config may name an id outside its vocabulary
        ]
        if ends:
            at, token = (to_device(np.array(column), own.device) for column in zip(*ends, strict=True))
            own[at, token] = -torch.inf

    def _column(self, name: str, device: torch.device) -> Tensor:
        values = np.array([getattr(params, name) for params in self.params], dtype=np.float32)
        return to_device(values, device)[:, None]
