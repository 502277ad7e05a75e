"""Runs a step operator by operator (eager mode): on a CPU, and on a GPU without CUDA graphs."""

from __future__ import annotations

import torch
from torch import Tensor

from roseinfer.attention.base import Attention
from roseinfer.batch import Batch, Ints
from roseinfer.engine.fetched import Fetched
from roseinfer.engine.logprobs import prompt_logits, prompt_logprobs, step_logprobs
from roseinfer.engine.runner import Pending, Runner
from roseinfer.engine.sampler import SamplingBatch, sample
from roseinfer.kvcache.pool import KVPool
from roseinfer.models.model import Model
from roseinfer.tensors import to_device
from roseinfer.tracing.ranges import named_range


class EagerRunner(Runner):
    """Runs the model, its attention and the sampler, for at most `capacity` running rows."""

    def __init__(self, model: Model, attention: Attention, pool: KVPool, capacity: int) -> None:
        self.model, self._attention, self._pool = model, attention, pool
        self._last = torch.zeros(capacity, dtype=torch.int64, device=pool.device)

    @torch.inference_mode()
    def launch(self, batch: Batch, sampling: SamplingBatch) -> Pending:
        if batch.settled.shape[1]:
            rows, tokens = (self._tensor(side) for side in batch.settled)
            self._last[rows] = tokens
        requests = self._tensor(batch.requests)
        newest = self._last[requests]
        prompts, decoded = batch.tokens[: batch.decode_start], newest[len(batch.prefill_requests) :]
        hidden, logits = self._forward(batch, torch.cat((self._tensor(prompts), decoded)))
        with named_range("roseinfer.sampler"):
            adjusted = logits
            if sampling.adjustments is not None:
                adjusted = sampling.adjustments.apply(logits, newest)
            sampled = sample(adjusted, sampling.params, sampling.position)
        self._last[requests] = sampled
        logprobs = step_logprobs(logits, sampled, sampling.logprob_rows)
        event = torch.cuda.Event() if sampled.is_cuda else None  # type: ignore[no-untyped-call]
        of_prompts = prompt_logprobs(hidden, self.model.logits, sampling.prompts)
        return Fetched([sampled], sampling.logprob_rows, logprobs, event, sampling.prompts, of_prompts)

    @torch.inference_mode()
    def follow(self, batch: Batch, prompt_rows: Ints) -> None:
        """Compute this rank's shard of a step that rank 0 launches and samples. All of `batch.tokens` are
        known. `prompt_rows` `[P]`: the rows of rank 0's `sampling.prompts`."""
        hidden, _ = self._forward(batch, self._tensor(batch.tokens))
        for _ in prompt_logits(hidden, self.model.logits, prompt_rows):
            pass

    def _forward(self, batch: Batch, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states `[T, width]` of the batch with `tokens` `[T]`, and logits `[R, vocab]` of its
        `last_rows`."""
        if batch.copies.shape[1]:
            self._pool.copy_blocks(*batch.copies)
        self._attention.begin(batch)
        name = "roseinfer.prefill_batch.model_forward" if batch.segments else "roseinfer.model.forward.eager"
        with named_range(name):
            hidden = self.model.forward(tokens, self._tensor(batch.positions), self._attention)
            return hidden, self.model.logits(hidden[self._tensor(batch.last_rows)])

    def _tensor(self, array: Ints) -> Tensor:
        return to_device(array, self._pool.device)
