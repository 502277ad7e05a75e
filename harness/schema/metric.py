"""The shape of a metric: its names, its value by raw times or counts, and the places that show it.

The entries are in `metrics.py`. A package adds one of its own through an entry point of the group
`rosebench.metrics` that names a `Metric`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:  # what only describes metrics starts without numpy
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Ints = npt.NDArray[np.integer]

#: Milliseconds of a second.
MS = 1e3

#: Seconds that are shorter than any clock can measure.
NO_TIME_S = 1e-9

#: Owner of one value. A rate has one value a cell; a metric of a batch has one value a repeat of it.
SampleKind = Literal["request", "token", "chunk", "cell", "batch"]

#: Places that have it: "headline" are the first table, the verdict, the primary comparisons, the trade-off
#: and the plan for repeats; "tables" those of its own and its figures; "overview" the figure of several
#: metrics; "compared" the comparisons of engines, for which verdicts are corrected, unless something else is
#: asked for; "gated" the limits of `--gate`; "slo" those of `--slo`; "offline" the table of the offline
#: batch, and "bars" its figures.
Use = Literal["headline", "tables", "overview", "compared", "gated", "slo", "offline", "bars"]


class Times(Protocol):
    """Raw times of U successful requests with S gaps between chunks; NaN where a time is unknown.

    Times are in s on the cell's clock. A gap is the time from one token-carrying chunk of a request to its
    next. `times.NAME` is (U,) the column `t_NAME` or `NAME` of the table of requests (records/columns.py):
    `times.sent`, `times.first`, `times.queue_wait_ms`.
    """

    def __getattr__(self, name: str) -> Floats:
        """Return (U,) a column of the table of requests."""

    @property
    def tokens(self) -> Floats:
        """(U,) output tokens."""

    @property
    def steps(self) -> Floats:
        """(U,) output tokens after the first chunk; NaN where there are none."""

    @property
    def connecting(self) -> Floats:
        """(U,) time to open the connection in s, 0 where one was there."""

    @property
    def gap_ms(self) -> Floats:
        """(S,) length of each gap, in ms, requests ascending and gaps in the order of time."""

    @property
    def gap_tokens(self) -> Ints:
        """(S,) tokens of the chunk that ends the gap."""

    @property
    def gap_request(self) -> Ints:
        """(S,) position of its request, below U."""


@dataclass(frozen=True)
class Counts:
    """Sums over one repeat of an engine at one load, or over several: all that rates and costs are made of.

    Where a part of the cell is measured, those that do not say so are of this part.

    Attributes:
        seconds: from the first scheduled arrival to the last end of a stream, or of the window.
        ended: successful requests that ended in it.
        good: requests of `ended` within the service level; None without one.
        prompt_tokens: of `ended`.
        output_tokens: that arrived in it, of successful requests.
        arrivals: requests that the schedule has.
        arrival_gaps: times between these arrivals: one fewer in each repeat.
        arrival_s: sum of the times between these arrivals; NaN where one is unknown.
        gpu_s: seconds times the GPUs that the engine computes on; None without one.
        cell_successes: successful requests of the whole cell.
        cell_tokens: output tokens of `cell_successes`.
        engine_cpu_s: CPU seconds of the engine's processes in the whole cell; None: unknown.
        joules: energy of the whole cell; None: unknown.
        joules_above_idle: the same without what the idle machine takes.
        sums: of `ended`, by metric: the sum of the values that it has `of` requests.
    """

    seconds: float
    ended: int
    good: int | None
    prompt_tokens: int
    output_tokens: int
    arrivals: int
    arrival_gaps: int
    arrival_s: float
    gpu_s: float | None
    cell_successes: int
    cell_tokens: int
    engine_cpu_s: float | None
    joules: float | None
    joules_above_idle: float | None
    sums: Mapping[str, float]


#: Numerator and denominator of a rate or another single number of a cell; None: unknown.
Fraction = tuple[float, float] | None


@dataclass(frozen=True)
class Metric:
    """A metric: a latency (of requests, tokens or chunks), or one number of a cell (a rate, cost or share).

    Latencies are in ms, and their names end in `_ms`.

    Attributes:
        name: its key in the results.
        label: as tables and figures show it.
        title: the name in full.
        formula: the short definition.
        meaning: the long one.
        of: a latency's values: (U,) one a request, NaN where it has none, or (S,) one a gap; of a sample of
            tokens each counts for the tokens of its chunk. A value is of its own request alone. Of a rate:
            (U,) what each request adds to `counts.sums[name]`.
        fraction: a cell's number, as numerator and denominator; repeats are pooled by their summed counts. It
            is 0 where the denominator is 0, as nothing passes in no time. Neither this nor `of`: another
            part of the run knows the number.
        by_session: one value of a whole session, also where a part of the cell is measured: a part has the
            short ones.
        by_engine: only the engine knows it: per request, else from its histograms.
        has_interval: repeats give its interval; of no use to a number that the schedule sets.
        set_by_load: an open loop's load sets it, until the engine falls behind.
        needs_slo: it is known with a service level only, and is then compared with those of another run.
        decimals: in tables; None: as many as show three digits.
        like: another metric; where every engine has the same values of both, or none of this one, this one
            is not shown.
    """

    name: str
    label: str
    title: str
    formula: str
    meaning: str
    of: Callable[[Times], Floats] | None = None
    unit: str = "ms"
    sample: SampleKind = "request"
    fraction: Callable[[Counts], Fraction] | None = None
    lower_is_better: bool = True
    by_session: bool = False
    by_engine: bool = False
    has_interval: bool = True
    set_by_load: bool = False
    needs_slo: bool = False
    uses: frozenset[Use] = frozenset()
    decimals: int | None = None
    like: str = ""

    @property
    def is_latency(self) -> bool:
        """True if it has a sample in every cell, and so a distribution in the results."""
        return self.sample in ("request", "token", "chunk")

    def rate(self, counts: Counts) -> float | None:
        """Return a cell's number; None where it is unknown, 0 where nothing passed in no time."""
        fraction = None if self.fraction is None else self.fraction(counts)
        if fraction is None:
            return None
        numerator, denominator = fraction
        return numerator / denominator if denominator > NO_TIME_S else 0.0

    @property
    def short_name(self) -> str:
        """Name as part of a gate or of a file's name: `ttft` of `ttft_ms`."""
        return self.name.removesuffix("_ms")
