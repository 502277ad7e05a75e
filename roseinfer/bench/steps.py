"""A runner that records each step's contents and time."""

from __future__ import annotations

from dataclasses import dataclass, field

from roseinfer.batch import Batch, Ints
from roseinfer.bench.cost import StepCost, contents, fit
from roseinfer.bench.replay import Clock
from roseinfer.engine.runner import Pending, Runner
from roseinfer.engine.sampler import SamplingBatch
from roseinfer.request.logprobs import StepLogprobs


@dataclass
class StepTimes:
    """Each step's contents, see StepCost, and the seconds from its launch, or from the end of the previous
    step if that is later, until its tokens are there."""

    contents: list[tuple[float, ...]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def fit(self) -> StepCost:
        """The cost model of the steps."""
        return fit(self.contents, self.seconds)


class TimedRunner(Runner):
    """Times the steps of `runner`."""

    def __init__(self, runner: Runner, clock: Clock) -> None:
        self._runner, self._clock = runner, clock
        self._last_end = 0.0
        self.times = StepTimes()

    def launch(self, batch: Batch, sampling: SamplingBatch) -> Pending:
        start = self._clock.now()
        return _TimedPending(self, self._runner.launch(batch, sampling), contents(batch), start)

    def note(self, contents: tuple[float, ...], start: float) -> None:
        """Record a step that was launched at `start` and has just ended."""
        now = self._clock.now()
        self.times.contents.append(contents)
        self.times.seconds.append(now - max(start, self._last_end))
        self._last_end = now


class _TimedPending(Pending):
    def __init__(
        self, runner: TimedRunner, pending: Pending, contents: tuple[float, ...], start: float
    ) -> None:
        self._runner, self._pending, self._contents, self._start = runner, pending, contents, start

    def tokens(self) -> Ints:
        tokens = self._pending.tokens()
        self._runner.note(self._contents, self._start)
        return tokens

    def logprobs(self) -> StepLogprobs | None:
        return self._pending.logprobs()
