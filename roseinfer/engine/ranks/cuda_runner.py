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

#: Seconds that capturing all graphs may take, compilation of their kernels included.
_CAPTURE_S = 900.0


class ParallelCudaRunner(CudaRunner):
    """Rank 0 alone knows the requests and samples; the other ranks launch the steps that it announces."""

    def __init__(self, group: RankGroup, *args: Any, **settings: Any) -> None:
        """`args` and `settings` as CudaRunner takes them."""
        super().__init__(*args, **settings)
        self._group = group
        group.watch_waits()

    def capture(self, *, prompts: bool, mixed: MixedSteps, verifies: bool = False) -> None:
        """Capture graphs with the other ranks. Raises RankError when another rank has ended or does not
        capture in time."""
        with self._group.waited_for(_CAPTURE_S):
            super().capture(prompts=prompts, mixed=mixed, verifies=verifies)

    def launch(self, batch: Batch, sampling: SamplingBatch) -> Pending:
        """Start a step on all ranks. Raises RankError when another rank has ended or does not respond."""
        with self._group.waited_for():  # copies from the host may wait for the GPU too
            self._await_slot()
            self._group.announce(batch, batch.tokens[batch.decode_start :], NO_INTS)
            return _Waited(super().launch(batch, sampling), self._group)


class _Waited(Pending):
    """A step that other ranks compute too: waiting for it has a time limit."""

    def __init__(self, pending: Pending, group: RankGroup) -> None:
        self._pending, self._group = pending, group

    def tokens(self) -> Ints:
        with self._group.waited_for():
            return self._pending.tokens()

    def logprobs(self) -> StepLogprobs | None:
        return self._pending.logprobs()
