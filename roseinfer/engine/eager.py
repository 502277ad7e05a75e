"""Runs a step operator by operator: on a CPU, and on a GPU without graphs."""

from __future__ import annotations

import torch
from torch import Tensor

from roseinfer.attention.base import Attention, Batch, Ints
from roseinfer.engine.logprobs import Asked, Logprobs, collect, tell
from roseinfer.engine.runner import Pending, Runner
from roseinfer.engine.sampler import SamplingBatch, sample
from roseinfer.kvcache.pool import KVPool
from roseinfer.logprobs import StepLogprobs
from roseinfer.models.model import Model
from roseinfer.ranges import named_range
from roseinfer.tensors import to_device


class EagerPending(Pending):
    """Sampled tokens `[R]` and what is told of them, on the device."""

    def __init__(self, sampled: Tensor, asked: Asked | None, told: tuple[Logprobs, ...]) -> None:
        self._sampled, self._asked, self._told = sampled, asked, told

    def tokens(self) -> Ints:
        tokens: Ints = self._sampled.cpu().numpy()
        return tokens

    def logprobs(self) -> StepLogprobs | None:
        return None if self._asked is None else collect(self._asked, self._told)


class EagerRunner(Runner):
    """The model, its attention and the sampler; `capacity` is the number of running rows."""

    def __init__(self, model: Model, attention: Attention, pool: KVPool, capacity: int) -> None:
        self._model, self._attention, self._pool = model, attention, pool
        self._last = torch.zeros(capacity, dtype=torch.int64, device=pool.device)

    @torch.inference_mode()
    def launch(self, batch: Batch, sampling: SamplingBatch) -> Pending:
        if batch.copies.shape[1]:
            self._pool.copy_blocks(*batch.copies)
        self._attention.begin(batch)
        requests = self._tensor(batch.requests)
        name = "roseinfer.prefill_batch.model_forward" if batch.segments else "roseinfer.model.forward.eager"
        with named_range(name):
            prompts = self._tensor(batch.tokens[: batch.decode_start])
            decoded = self._last[requests[len(batch.prefill_requests) :]]
            hidden = self._model.forward(
                torch.cat((prompts, decoded)), self._tensor(batch.positions), self._attention
            )
            logits = self._model.logits(hidden[self._tensor(batch.last_rows)])
        with named_range("roseinfer.sampler"):
            sampled = sample(logits, sampling)
        self._last[requests] = sampled
        return EagerPending(sampled, sampling.asked, tell(logits, sampled, sampling.asked))

    def _tensor(self, array: Ints) -> Tensor:
        return to_device(array, self._pool.device)
