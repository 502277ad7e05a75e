"""The engine's loop: prepare a step, launch it, process its tokens."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from roseinfer.batch import Batch, Ints
from roseinfer.engine.adjustments import Adjustments
from roseinfer.engine.logprobs import logprob_rows, prompt_logprob_rows
from roseinfer.engine.pace import Pace
from roseinfer.engine.runner import Pending, Runner
from roseinfer.engine.sampler import SamplingBatch
from roseinfer.scheduler.running import Running
from roseinfer.scheduler.scheduler import Scheduler, StepResult
from roseinfer.tracing.ranges import named_range

#: A step whose tokens are there so soon after the next launch had ended before it.
_AT_ONCE_S = 5e-5


@dataclass(frozen=True)
class _Launched:
    """A step in flight, and which of its rows ask for logprobs. `awaited`: it was launched once the tokens of
    the step before were known, so that it could have drafts."""

    batch: Batch
    pending: Pending
    logprob_rows: Ints | None
    awaited: bool


class Loop:
    """With `overlap`, a step is launched before the host waits for the tokens of the previous one, so that
    the host prepares and processes while the device computes. With `late` too, `launch_at` says how long the
    next call of `step` may wait meanwhile. A step after one that verifies drafts, or that is likely to have
    drafts itself, is launched as soon as the tokens are known. The tokens are the same either way.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        running: Running,
        runner: Runner,
        *,
        overlap: bool,
        late: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler, self._running, self.runner = scheduler, running, runner
        self._overlap, self._clock = overlap, clock
        self._pace = Pace() if overlap and late else None
        self._begun = self._ended = 0.0
        self._in_flight: _Launched | None = None
        self._busy = False  # there was work left after the last step
        self._rows: Ints | None = None
        #: When to call `step`, which launches the next step, on `clock`: requests that come until then are in
        #: it. A time that has passed: now.
        self.launch_at = 0.0

    def step(self) -> StepResult | None:
        """Process one step, which may have yielded no token; None when there is no work."""
        in_flight, speculation = self._in_flight, self._scheduler.speculation
        if in_flight is None:
            if speculation is not None and not self._busy:
                self._ended = self._clock()
            begun = self._clock()
            in_flight = self._launch()
            self._begun = self._clock() if self._overlap else begun  # else a launch may be the computation
        if in_flight is None:
            return None
        batch, pending = in_flight.batch, in_flight.pending
        waits = self._overlap and (batch.verifying > 0 or self._scheduler.awaits_tokens)
        before = self._clock()
        self._in_flight = self._launch() if self._overlap and not waits else None
        launched = self._clock()
        if (costs := self._scheduler.costs) is not None:
            costs.update()  # while the device computes
        tokens = pending.tokens()
        self._measure(batch, before, launched)
        result, logprobs = self._scheduler.process(batch, tokens), pending.logprobs()
        if speculation is not None:
            ended, begun = self._clock(), self._ended
            speculation.ended(batch, len(result.ids), ended - begun, awaited=in_flight.awaited)
            self._ended, self._busy = ended, self._scheduler.has_work
        if waits:
            self._in_flight = self._launch(awaited=True)
            self._begun = self._clock()
        if (prompts := pending.prompt_logprobs()) is not None:
            result = replace(result, prompt_logprobs=prompts)
        if logprobs is None or in_flight.logprob_rows is None:
            return result
        if result.rows is None:
            return replace(result, logprobs=logprobs.where(np.isin(logprobs.ids, result.ids)))
        return replace(result, logprobs=logprobs.where(np.isin(in_flight.logprob_rows, result.rows)))

    def _measure(self, batch: Batch, before: float, launched: float) -> None:
        """The step of `batch` has just ended; the next was launched from `before` to `launched`, and begins
        now."""
        ended, pace = self._clock(), self._pace
        taken, self._begun, self.launch_at = ended - self._begun, ended, 0.0
        if (costs := self._scheduler.costs) is not None:
            costs.note(batch, taken)
        if pace is None:
            return
        pace.ended(batch, taken)
        if self._in_flight is not None:
            pace.launched(launched - before, late=ended - launched < _AT_ONCE_S)
            self.launch_at = ended + pace.wait_s(self._in_flight.batch)

    def _launch(self, *, awaited: bool = False) -> _Launched | None:
        with named_range("roseinfer.scheduler.admit"):
            batch = self._scheduler.prepare()
        if batch is None:
            return None
        sampling = self._sampling(batch)
        pending = self.runner.launch(batch, sampling)
        self._scheduler.launched(batch)
        asking = sampling.logprob_rows
        return _Launched(batch, pending, None if asking is None else asking.rows, awaited)

    def _sampling(self, batch: Batch) -> SamplingBatch:
        running, rows = self._running, batch.requests
        if rows is not self._rows:  # the scheduler makes a new array with every change
            self._rows = rows
            self._params = running.sampling[rows]
            self._logprob_rows = logprob_rows(running.logprobs[rows], running.ids[rows])
            self._adjusts, least = running.adjusts[rows], running.least[rows]
            self._adjusting, self._least = np.flatnonzero(self._adjusts), least if least.any() else None
        length, adjusting = batch.positions[batch.last_rows] + 1, self._adjusting
        if self._least is not None:
            adjusting = np.flatnonzero(self._adjusts | (length < self._least))
        adjustments = None
        if len(adjusting):
            adjustments = Adjustments.of(running, rows, length, adjusting, self._scheduler.eos)
        prompts = prompt_logprob_rows(batch, running) if batch.segments else None
        return SamplingBatch(self._params, length, self._logprob_rows, adjustments, prompts)
