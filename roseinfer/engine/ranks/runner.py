"""Runs steps on several CPU processes, each with its shard of every layer."""

from __future__ import annotations

from roseinfer.attention.base import Attention
from roseinfer.batch import NO_INTS, Batch
from roseinfer.engine.eager import EagerRunner
from roseinfer.engine.ranks.group import RankGroup
from roseinfer.engine.runner import Pending
from roseinfer.engine.sampler import SamplingBatch
from roseinfer.kvcache.pool import KVPool
from roseinfer.models.model import Model


class ParallelRunner(EagerRunner):
    """Rank 0, which alone knows the requests and samples."""

    def __init__(
        self, model: Model, attention: Attention, pool: KVPool, capacity: int, group: RankGroup
    ) -> None:
        super().__init__(model, attention, pool, capacity)
        self._group = group

    def launch(self, batch: Batch, sampling: SamplingBatch) -> Pending:
        """Start a step on all ranks. Raises RankError when another rank has ended or does not respond."""
        decoded = self._last[self._tensor(batch.decode_requests)].numpy()
        prompt_rows = NO_INTS if sampling.prompts is None else sampling.prompts.rows
        self._group.announce(batch, decoded, prompt_rows)
        with self._group.watched():
            return super().launch(batch, sampling)
