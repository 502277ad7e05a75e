"""What a metric is: its names, how it comes from raw times, and where it is shown.

The entries are in `metrics.py`. A package adds one of its own through an entry point of the group
`rosebench.metrics` that names a `Metric`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:  # what only describes metrics starts without numpy
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Ints = npt.NDArray[np.integer]

#: Milliseconds of a second.
MS = 1e3

#: What one value is of. A rate has one value a cell; what is of a batch has one value a repeat of it.
SampleKind = Literal["request", "token", "chunk", "cell", "batch"]

#: Where it appears: "headline" are the first table, the verdict, the trade-off and the plan for repeats;
#: "tables" those of its own and its figures; "overview" the figure of several metrics; "compared" what
#: engines are compared by, and verdicts are corrected for, unless something else is asked for; "gated" what
#: `--gate` takes; "slo" what `--slo` takes; "offline" the table of the offline batch.
Use = Literal["headline", "tables", "overview", "compared", "gated", "slo", "offline"]


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
        """(U,) output tokens after the first; NaN where there is none, or where all came at one moment."""

    @property
    def gap_ms(self) -> Floats:
        """(S,) length of each gap, in ms, requests ascending and gaps in the order of time."""

    @property
    def gap_tokens(self) -> Ints:
        """(S,) tokens of the chunk that ends the gap."""

    @property
    def gap_request(self) -> Ints:
        """(S,) position of its request, below U."""


class Counts(Protocol):
    """What passed through an engine in the measured time."""

    @property
    def ended(self) -> int:
        """Successful requests that ended in it."""

    @property
    def good(self) -> int | None:
        """Successful requests within the service level; None without one."""

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of the successful requests."""

    @property
    def output_tokens(self) -> int:
        """Tokens that arrived in it."""


@dataclass(frozen=True)
class Metric:
    """A metric. Latencies (of requests, tokens or chunks) are in ms and their names end in `_ms`.

    Attributes:
        name: its key in the results.
        label: as tables and figures show it.
        title: the name in full.
        formula: the short definition.
        meaning: the long one.
        of: a latency's values: (U,) one a request, NaN where it has none, or (S,) one a gap; of a sample of
            tokens each counts for the tokens of its chunk. A value is of its own request alone.
        counted: what a rate counts; it is divided by the measured time.
        by_engine: only the engine knows it: per request, else from its histograms.
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
    counted: Callable[[Counts], int | None] | None = None
    lower_is_better: bool = True
    by_engine: bool = False
    uses: frozenset[Use] = frozenset()
    decimals: int | None = None
    like: str = ""

    @property
    def is_latency(self) -> bool:
        """Whether it has a sample in every cell, and so a distribution in the results."""
        return self.sample in ("request", "token", "chunk")

    @property
    def short_name(self) -> str:
        """As part of a gate or of a file's name: `ttft` of `ttft_ms`."""
        return self.name.removesuffix("_ms")
