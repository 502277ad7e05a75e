"""Runs one batch on the device: tokens in, next tokens out."""

from __future__ import annotations

import torch
from torch.profiler import record_function

from roseinfer.attention.base import Attention, Batch, Ints
from roseinfer.engine.sampler import SamplingBatch, sample
from roseinfer.models import GPT2


class Runner:
    """The model, its attention and the sampler, behind one call."""

    def __init__(self, model: GPT2, attention: Attention, device: torch.device) -> None:
        self._model, self._attention, self._device = model, attention, device

    @torch.inference_mode()
    def launch(self, batch: Batch, how: SamplingBatch) -> torch.Tensor:
        """Next tokens `[R]` on the device, in the order of `batch.requests`."""
        self._attention.begin(batch)
        name = "roseinfer.prefill_batch.model_forward" if batch.segments else "roseinfer.model.forward.eager"
        with record_function(name):
            hidden = self._model.forward(
                self._tensor(batch.tokens), self._tensor(batch.positions), self._attention
            )
            logits = self._model.logits(hidden[self._tensor(batch.last_rows)])
        with record_function("roseinfer.sampler"):
            return sample(logits, how)

    def _tensor(self, array: Ints) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)
