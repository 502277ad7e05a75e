"""Sources of the requests of a run: a trace at its times, or prompts at times that a load decides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from harness.errors import UsageError
from harness.loadgen.load_plan import WireRequest
from harness.loadgen.system_limits import most_in_flight
from harness.schema.load import (
    Arrivals,
    Batch,
    ClosedLoop,
    Load,
    Ramp,
    RateSeries,
    RequestRate,
    TraceLoad,
    requests_at,
)
from harness.schema.online_settings import Fit
from harness.schema.run_info import TraceRecord
from harness.schema.setting_types import MAX_REQUESTS
from harness.traces import catalog, sampling
from harness.traces.fit import Fitted, fit
from harness.traces.trace import Trace
from harness.workload.content import Content, Ints, SyntheticContent
from harness.workload.planned_requests import PlannedRequest, open_loop

L = TypeVar("L", bound=Load)
#: Loads whose times are drawn by a rate.
Rated = RequestRate | Ramp | RateSeries

#: An open loop is taken to have as many requests in flight as arrive in this time, at most MAX_WARMUP_BATCH.
WARMUP_WINDOW_S = 2.0
MAX_WARMUP_BATCH = 32
#: Seconds that a stream of a closed loop, whose rate is not known in advance, is taken to need for a token.
STREAM_GAP_S = 0.005


@dataclass(frozen=True)
class Loads(Generic[L]):
    """The loads of a run, which are all of one kind, and how much is sent at each.

    Attributes:
        each: From light to heavy.
        seeds: Seed of the shape of each load in the first repeat: of its times, lengths and order.
        n: Requests of a load, at least.
        rounds: Requests of a closed loop for each in flight, at least.
        seconds: Time that a load lasts, at least.
    """

    each: Sequence[L]
    seeds: Sequence[int]
    n: int
    rounds: int | None = None
    seconds: float = 0.0

    @property
    def first_repeat(self) -> list[tuple[L, int]]:
        """Each load with the seed of its shape."""
        return list(zip(self.each, self.seeds, strict=True))

    def requests(self, load: Load) -> int:
        """Return how many requests are sent at a load."""
        return requests_at(load, self.n, self.rounds)


class RequestSource(ABC, Generic[L]):
    """The requests of a run's loads.

    Attributes:
        record: The requests of the first repeat, as the result files record them.
        is_random: Each prompt is of random token ids of its own.
    """

    record: TraceRecord
    is_random = False

    def __init__(self, loads: Loads[L]) -> None:
        self.loads = loads

    @abstractmethod
    def requests(
        self, load: L, seed: int, shape_seed: int, first: int = 0, n: int | None = None
    ) -> list[PlannedRequest]:
        """Plan one cell's requests.

        Args:
            seed: Seed of the token ids of its prompts.
            shape_seed: Seed of its times, lengths and order, which are the same for every engine.
            first: Prompts of a closed loop that are left out.
            n: Prompts of a closed loop that are taken; None: as many as the load has.
        """

    @abstractmethod
    def input_lengths(self, size: int) -> list[int]:
        """Return `size` numbers of prompt tokens, at evenly spaced quantiles."""

    @abstractmethod
    def in_flight(self) -> int:
        """Return the requests in flight at the heaviest load, as far as they are known in advance."""

    def requests_per_s(self) -> float:
        """Return the rate of the heaviest load; 0 where it depends on the engine."""
        return 0.0

    def tokens_per_s(self) -> float:
        """Return the output tokens a second that the heaviest load asks for, as many chunks at most."""
        return self.in_flight() / STREAM_GAP_S


class OpenLoopSource(RequestSource[L]):
    """Requests that have times of their own, whatever the engine answers."""

    @abstractmethod
    def times(self) -> NDArray[np.float64]:
        """Return when the requests of the heaviest load are due in its first repeat: (n,) seconds."""

    def in_flight(self) -> int:
        due = [WireRequest(i, t, b"") for i, t in enumerate(self.times().tolist())]
        return min(most_in_flight(due, None, WARMUP_WINDOW_S), MAX_WARMUP_BATCH)

    def requests_per_s(self) -> float:
        times = self.times()
        return len(times) / max(float(times[-1] - times[0]), 1.0)

    def tokens_per_s(self) -> float:
        return self.requests_per_s() * self.record.output_tokens / max(1, self.record.requests)


class FittedSource(OpenLoopSource[L]):
    """Requests with times and lengths of their own, which are fitted into the context.

    Args:
        rule: Treatment of requests that do not fit the context.
        context: Tokens of a prompt and its answer together.
        max_output: Most output tokens, where the rule clips.
    """

    #: Requests of the heaviest load.
    trace: Trace

    def __init__(
        self, loads: Loads[L], rule: Fit, context: int, vocab_size: int, max_output: int | None = None
    ) -> None:
        super().__init__(loads)
        self._rule, self._context, self._max_output = rule, context, max_output
        self._vocab_size = vocab_size

    def input_lengths(self, size: int) -> list[int]:
        return self.trace.input_quantiles(size)

    def times(self) -> NDArray[np.float64]:
        return self.trace.arrival_s

    def _fit(self, trace: Trace) -> Fitted:
        return fit(trace, self._rule, self._context, self._max_output)


class TraceSource(FittedSource[TraceLoad]):
    """The head of a trace, as much as the heaviest load needs, at the times of the trace.

    Args:
        trace: A name from the catalog, or a file.

    Raises:
        UsageError: The trace is missing or unreadable, or nothing fits the context.
    """

    def __init__(self, loads: Loads[TraceLoad], trace: str, *fitting: Any) -> None:
        super().__init__(loads, *fitting)
        self._heaviest = loads.each[-1]
        fitted = self._fit(catalog.load(trace, self._is_enough))
        fitted = fitted.head(self._count(fitted.trace, self._heaviest))
        self.trace, self.record = fitted.trace, fitted.record()
        self.is_random = self.trace.blocks is None

    def requests(
        self, load: TraceLoad, seed: int, shape_seed: int, first: int = 0, n: int | None = None
    ) -> list[PlannedRequest]:
        head = self.trace.head(self._count(self.trace, load))
        return open_loop(head, load.scale, self._vocab_size, seed)

    def times(self) -> NDArray[np.float64]:
        return super().times() * self._heaviest.scale

    def _is_enough(self, head: Trace) -> bool:
        """Return whether no load needs more than this head; scaling all lengths needs the whole trace."""
        if self._rule == "scale":
            return False
        try:
            fitted = self._fit(head).trace
        except UsageError:
            return False
        return self._count(fitted, self._heaviest) < len(fitted)

    def _count(self, trace: Trace, load: TraceLoad) -> int:
        """Return the requests of the trace's head: `n`, or as many as arrive while the cell is to last."""
        seconds = self.loads.seconds / load.scale
        return max(self.loads.n, int(np.searchsorted(trace.arrival_s, seconds)) + 1)


class ContentSource(RequestSource[L]):
    """Requests of a content, whose times the load decides. No turn waits longer than `max_think_s`."""

    def __init__(self, loads: Loads[L], content: Content, max_think_s: float | None = None) -> None:
        super().__init__(loads)
        self.content, self._max_think_s = content, max_think_s
        self.is_random = type(content) is SyntheticContent

    def input_lengths(self, size: int) -> list[int]:
        return self.content.input_lengths(size)

    def _untimed(self, n: int, seed: int, shape_seed: int, first: int = 0) -> list[PlannedRequest]:
        requests, most = self.content.take(n, seed, shape_seed, first), self._max_think_s
        if most is None:
            return requests
        return [r if r.think_s is None else replace(r, think_s=min(r.think_s, most)) for r in requests]

    def _record(self, name: str, loads: str, lengths: Iterable[tuple[Ints, Ints]]) -> TraceRecord:
        of_loads, content = list(lengths), self.content
        dropped = content.dropped
        return TraceRecord(
            **{"name": name} | content.about,
            origin=f"{loads}, {content.text}",
            dropped=dropped,
            requests=sum(len(inputs) for inputs, _ in of_loads),
            fit="drop" if dropped else "none",
            input_tokens=sum(int(inputs.sum()) for inputs, _ in of_loads),
            output_tokens=sum(int(outputs.sum()) for _, outputs in of_loads),
            prompts=content.prompts,
        )


class ClosedLoopSource(ContentSource[ClosedLoop]):
    """A number of requests in flight: each is sent when another one ends."""

    def __init__(self, loads: Loads[ClosedLoop], content: Content, max_think_s: float | None = None) -> None:
        super().__init__(loads, content, max_think_s)
        *fewer, most = (str(load.value) for load in loads.each)
        in_flight = f"{', '.join(fewer)} and {most}" if fewer else most
        text = f"{in_flight} request{'' if in_flight == '1' else 's'} in flight"
        lengths = (content.lengths(loads.requests(load), seed) for load, seed in loads.first_repeat)
        self.record = self._record("closed loop", text, lengths)

    def requests(
        self, load: ClosedLoop, seed: int, shape_seed: int, first: int = 0, n: int | None = None
    ) -> list[PlannedRequest]:
        return self._untimed(self.loads.requests(load) if n is None else n, seed, shape_seed, first)

    def in_flight(self) -> int:
        return max(min(load.concurrency, self.loads.requests(load)) for load in self.loads.each)


class BatchSource(ContentSource[Batch]):
    """Prompts that are all there from the start; more requests than these are the same prompts again."""

    def __init__(self, loads: Loads[Batch], content: Content) -> None:
        super().__init__(loads, content)
        lengths = (content.lengths(load.prompts, seed) for load, seed in loads.first_repeat)
        self.record = self._record("batch", str(loads.each[0]), lengths)

    def requests(
        self, load: Batch, seed: int, shape_seed: int, first: int = 0, n: int | None = None
    ) -> list[PlannedRequest]:
        prompts = self._untimed(load.prompts, seed, shape_seed)
        count = load.prompts if n is None else n
        return [replace(prompts[index % load.prompts], index=index) for index in range(count)]

    def in_flight(self) -> int:
        return max(load.prompts for load in self.loads.each)


class RateSource(ContentSource[Rated], OpenLoopSource[Rated]):
    """A number of requests a second, at times drawn from a seed."""

    def __init__(self, loads: Loads[Rated], content: Content, max_think_s: float | None = None) -> None:
        super().__init__(loads, content, max_think_s)
        text = "; ".join(str(load) for load in loads.each)
        lengths = (content.lengths(len(self._arrivals(*shape)), shape[1]) for shape in loads.first_repeat)
        self.record = self._record("synthetic", text, lengths)

    def requests(
        self, load: Rated, seed: int, shape_seed: int, first: int = 0, n: int | None = None
    ) -> list[PlannedRequest]:
        times = self._arrivals(load, shape_seed)
        due = iter(times.tolist())
        return [
            request if request.think_s is not None else replace(request, t_sched_s=next(due))
            for request in self._untimed(len(times), seed, shape_seed)
        ]

    def times(self) -> NDArray[np.float64]:
        return self._arrivals(*self.loads.first_repeat[-1])

    def _arrivals(self, load: Rated, shape_seed: int) -> NDArray[np.float64]:
        return arrival_times(load, shape_seed, self.loads.requests(load), self.loads.seconds)


#: The stream of the seed; others draw lengths and the order of prompts.
STREAM = 0


def arrival_times(load: Rated, seed: int, n: int = 1, seconds: float = 0.0) -> NDArray[np.float64]:
    """Draw ascending times in seconds, (k,), the first at 0; the same for the same load and seed.

    A rate has `n`, or as many as last `seconds`, whichever is more. A ramp and a series have those in their
    own time.

    Raises:
        UsageError: There are more than MAX_REQUESTS.
    """
    if isinstance(load, RequestRate):
        expected = seconds * load.req_per_s
        _check_count(expected, f"{load.req_per_s:g} requests/s for {seconds:g} s")
        sums = _sums(load.arrivals, load.cv, seed, max(n - 1, ceil(expected)), until=expected)
        times: NDArray[np.float64] = sums / load.req_per_s
        return times[: max(n, int(np.searchsorted(times, seconds)) + 1)]
    if isinstance(load, RateSeries):
        return _times_of(load, seed)
    begin, end, over = load.from_req_per_s, load.to_req_per_s, load.seconds
    whole = (begin + end) / 2 * over
    _check_count(whole, str(load))
    sums = _sums(load.arrivals, load.cv, seed, ceil(whole), until=whole)
    sums = sums[: int(np.searchsorted(sums, whole, side="right"))]
    slope = (end - begin) / over
    # The root of begin·t + slope·t²/2 = sum, without a difference of nearly equal numbers.
    times = 2 * sums / (begin + np.sqrt(np.maximum(0.0, begin**2 + 2 * slope * sums)))
    return times


def _times_of(series: RateSeries, seed: int) -> NDArray[np.float64]:
    """Draw the times of a series: gaps of mean 1 add up to a stage's rate in each of its seconds."""
    rates = np.array([stage.req_per_s for stage in series.stages])
    ends_s = np.array(series.ends_s)
    begins_s = np.concatenate([[0.0], ends_s[:-1]])
    sums_at_ends = np.cumsum(rates * (ends_s - begins_s))
    whole = float(sums_at_ends[-1])
    _check_count(whole, str(series))
    sums = _sums(series.arrivals, series.cv, seed, ceil(whole), until=whole)
    sums = sums[: int(np.searchsorted(sums, whole))]
    stage = np.searchsorted(sums_at_ends, sums, side="right")  # past stages without requests
    since = sums - np.concatenate([[0.0], sums_at_ends])[stage]
    times: NDArray[np.float64] = begins_s[stage] + since / rates[stage]
    return times


def _check_count(count: float, what: str) -> None:
    if count > MAX_REQUESTS:
        raise UsageError(
            f"{what} would be {count:,.0f} requests, and a cell may have {MAX_REQUESTS:,}",
            "lower the rate or the time",
        )


def _sums(arrivals: Arrivals, cv: float | None, seed: int, n: int, until: float) -> NDArray[np.float64]:
    """Return 0 and the sums of the first gaps of mean 1: `n` gaps, and as many more as pass `until`."""
    spread = {"poisson": 1.0, "constant": 0.0}.get(arrivals, cv or 0.0)
    count = max(1, n)
    while True:
        # A longer draw from the stream begins with the numbers of a shorter one.
        gaps = np.ones(count) if not spread else sampling.gamma_gaps(count, 1.0, spread, seed, STREAM)
        sums = np.concatenate([[0.0], np.cumsum(gaps)])
        if sums[-1] > until:
            return sums
        count += ceil(until - sums[-1] + 4 * spread * sqrt(until) + 16)
