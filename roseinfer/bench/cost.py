"""A linear cost model of steps: device time as a function of their contents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field

import numpy as np
from scipy.optimize import nnls

from roseinfer.batch import Batch, Ints
from roseinfer.bench.replay import Clock
from roseinfer.engine.runner import Pending, Runner
from roseinfer.engine.sampler import SamplingBatch
from roseinfer.request.logprobs import StepLogprobs


@dataclass(frozen=True)
class StepCost:
    """Seconds on the device, linear in a step's contents.

    Args:
        prompts: for a step with prefill.
        prompt_token: for each prompt token.
        prompt_pair: for each pair of a prompt token and a token that it attends to.
        decode: for a step with decode.
        decode_row: for each decoding request.
        decode_context: for each cached token that those attend to.
    """

    prompts: float
    prompt_token: float
    prompt_pair: float
    decode: float
    decode_row: float
    decode_context: float

    def seconds(self, batch: Batch) -> float:
        """The time of one step."""
        parts: tuple[float, ...] = astuple(self)
        return sum(a * b for a, b in zip(parts, contents(batch), strict=True))


def contents(batch: Batch) -> tuple[float, ...]:
    """The contents of a step, by which the fields of StepCost are multiplied."""
    tokens = sum(segment.count for segment in batch.segments)
    pairs = sum(s.count * s.context + s.count * (s.count + 1) / 2 for s in batch.segments)
    rows = len(batch.decode_lengths)
    return float(tokens > 0), tokens, pairs, float(rows > 0), rows, float(batch.decode_lengths.sum())


def fit(steps: Sequence[tuple[float, ...]], seconds: Sequence[float]) -> StepCost:
    """Fit the cost to measured steps, by non-negative least squares of the relative errors."""
    measured = np.array(steps, dtype=np.float64) / np.array(seconds)[:, None]
    size = measured.max(axis=0)
    size[size == 0] = 1
    parts, _ = nnls(measured / size, np.ones(len(measured)))
    return StepCost(*(parts / size).tolist())


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
