"""Rank 0 of an engine on several GPUs."""

from __future__ import annotations

from typing import Any

from roseinfer.batch import NO_INTS, Batch, Ints
from roseinfer.engine.cuda import CudaRunner
from roseinfer.engine.graphs import MixedSteps
from roseinfer.engine.ranks.group import RankGroup
from roseinfer.engine.runner import Pending
from roseinfer.engine.sampler import SamplingBatch
from roseinfer.request.logprobs import StepLogprobs

#: How long graphs may take, kernels that are compiled for the first time included.
_CAPTURE_S = 900.0


class ParallelCudaRunner(CudaRunner):
    """It alone knows the requests and chooses their tokens; the other ranks launch what it announces."""

    def __init__(self, group: RankGroup, *args: Any, **settings: Any) -> None:
        """`args` and `settings` as CudaRunner takes them."""
        super().__init__(*args, **settings)
        self._group = group
        group.watch_waits()

    def capture(self, *, prompts: bool, mixed: MixedSteps) -> None:
        """As in CudaRunner. Raises RankError when another rank has ended or never gets there."""
        with self._group.waited_for(_CAPTURE_S):
            super().capture(prompts=prompts, mixed=mixed)

    def launch(self, batch: Batch, sampling: SamplingBatch) -> Pending:
        """As in Runner. Raises RankError when another rank has ended or is silent."""
        with self._group.waited_for():
            self._await_slot()
        self._group.announce(batch, batch.tokens[batch.decode_start :], NO_INTS)
        return _Waited(super().launch(batch, sampling), self._group)


class _Waited(Pending):
    """A step that other ranks compute too: the wait for it is watched."""

    def __init__(self, pending: Pending, group: RankGroup) -> None:
        self._pending, self._group = pending, group

    def tokens(self) -> Ints:
        with self._group.waited_for():
            return self._pending.tokens()

    def logprobs(self) -> StepLogprobs | None:
        return self._pending.logprobs()
