"""Logits with the biases and penalties that requests ask for, and without ends that come too soon."""

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
    """Of `A` requests in a step.

    Args:
        rows: `[A]`, theirs in the step, rising.
        tokens: `[A, L]`, what each request has, prompt and generated; UNKNOWN for one that the device has
            sampled and the host has not seen. What is after `lengths` is no token.
        prompts, lengths: `[A]`, tokens of the prompt, and of it with what was generated.
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
        """Of those at the places `adjusting` in a step of the running `rows`."""
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
        """Of those among `count` rows from `start` on; None where there is none."""
        first, end = np.searchsorted(self.rows, (start, start + count)).tolist()
        if first == end:
            return None
        own = slice(first, end)
        return Adjustments(
            self.rows[own] - start, self.tokens[own], self.prompts[own], self.lengths[own], self.params[own],
            self.eos,
        )  # fmt: skip

    def apply(self, logits: Tensor, newest: Tensor) -> Tensor:
        """The step's logits `[R, vocab]` as they are to be sampled from, in a copy. `newest` `[R]`: the last
        token of each request that decodes."""
        device, vocab = logits.device, logits.shape[-1]
        rows = to_device(self.rows, device)
        own = logits[rows].float()
        self._add_biases(own)
        tokens = to_device(self.tokens, device).long()
        tokens = torch.where(tokens == UNKNOWN, newest[rows][:, None], tokens)
        place = torch.arange(tokens.shape[1], device=device)
        known = place < to_device(self.lengths, device)[:, None]
        generated = known & (place >= to_device(self.prompts, device)[:, None])
        nowhere = tokens.new_full((), vocab)  # a column that is cut off
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
        """What would end an answer that has not got its `min_tokens` yet."""
        made = (self.lengths - self.prompts).tolist()
        ends = [
            (at, token)
            for at, params in enumerate(self.params)
            if made[at] < params.min_tokens
            for token in params.ends(self.eos)
            if token < own.shape[1]  # a model's configuration may name one that it does not have
        ]
        if ends:
            at, token = (to_device(np.array(column), own.device) for column in zip(*ends, strict=True))
            own[at, token] = -torch.inf

    def _column(self, name: str, device: torch.device) -> Tensor:
        values = np.array([getattr(params, name) for params in self.params], dtype=np.float32)
        return to_device(values, device)[:, None]
