"""Times of steps, and the cost model of those of GPT-2."""

from __future__ import annotations

from dataclasses import dataclass, field

from roseinfer.batch import Batch, Ints
from roseinfer.bench.replay import Clock
from roseinfer.engine.runner import Pending, Runner
from roseinfer.engine.sampler import SamplingBatch
from roseinfer.request.logprobs import StepLogprobs
from roseinfer.scheduler.cost import StepCost, contents

#: GPT-2 124M in fp16 on an H200 with this engine's kernels and graphs: fitted to decode steps of 1 to 256
#: requests of 288 tokens (173 to 1,133 us; a row's cost includes its context) and to prompts of 16 to 8,192
#: tokens (316 to 3,364 us). Errors are within 21 %, except for 1 and 2 requests (36 and 23 % too much), which
#: run other kernels.
GPT2_ON_H200 = StepCost(
    prompts=328e-6, prompt_token=0.371e-6, prompt_pair=0, decode=231e-6, decode_row=4.07e-6, decode_context=0
)


@dataclass
class StepTimes:
    """Each step's contents, see StepCost, and the seconds from its launch, or from the end of the previous
    step if that is later, until its tokens are there."""

    contents: list[tuple[float, ...]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


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
