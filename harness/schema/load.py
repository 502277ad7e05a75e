"""Loads: when requests are sent, by their `kind`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import accumulate
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from harness.schema.base import Strict

#: How the times between arrivals are distributed; `clients`: by each client of a mixture.
Arrivals = Literal["poisson", "gamma", "constant", "clients"]
#: What a load counts: requests, or whole sessions of requests that follow each other.
Counted = Literal["requests", "sessions"]


#: Seconds since the start of a trace or of a cell: none lasts three years.
LATEST_S = 1e8
#: Stages of a series that are named in words.
MOST_STAGES = 5


class _Level(Strict):
    """One load. Loads of a kind ascend by their value; of several kinds, traces come first."""

    model_config = ConfigDict(frozen=True)

    _rank: ClassVar[int]
    #: Name of the field that is the load's number.
    _number: ClassVar[str]

    @property
    def counts(self) -> Counted:
        """Unit of the load's number."""
        return "requests"

    def __lt__(self, other: _Level) -> bool:
        return self._key < other._key

    @property
    def value(self) -> float:
        """Number of the load, above 0: a place on an axis."""
        value: float = getattr(self, self._number)
        return value

    @property
    def weight(self) -> float:
        """Grows from a light load to a heavy one."""
        return self.value

    @property
    def in_flight(self) -> int | None:
        """Number of requests or sessions that the load keeps in flight; None of one with times of its own."""
        return None

    @property
    def _key(self) -> tuple[int, float, str]:
        return self._rank, self.value, self.model_dump_json()


class TraceLoad(_Level):
    """A trace whose times between arrivals are multiplied by `scale`; smaller is heavier."""

    _rank, _number = 0, "scale"

    kind: Literal["trace"] = "trace"
    scale: float = Field(gt=0)

    def __str__(self) -> str:
        return f"scale {self.scale:g}"

    @property
    def weight(self) -> float:
        return -self.scale


class _Counting(_Level):
    """A load that can count sessions. Loads of requests are written as they always were, without `of`."""

    of: Counted = Field(
        "requests",
        exclude_if=lambda of: of == "requests",
        description="what is counted; a session is in flight until its last answer ends",
    )

    @property
    def counts(self) -> Counted:
        return self.of


class ClosedLoop(_Counting):
    """`concurrency` requests or sessions in flight: each is sent when one before it has ended."""

    _rank, _number = 1, "concurrency"

    kind: Literal["closed_loop"] = "closed_loop"
    concurrency: int = Field(ge=1)

    def __str__(self) -> str:
        what = "" if self.of == "requests" else f"session{'' if self.concurrency == 1 else 's'} "
        return f"{self.concurrency:,} {what}in flight"

    @property
    def in_flight(self) -> int:
        return self.concurrency


class RequestRate(_Counting):
    """`req_per_s` requests or sessions begin a second on average, whatever the engine answers."""

    _rank, _number = 2, "req_per_s"

    kind: Literal["rate"] = "rate"
    req_per_s: float = Field(gt=0)
    arrivals: Arrivals = Field("poisson", description="how the times between requests are distributed")
    cv: float | None = Field(None, gt=0, description="coefficient of variation of these times, with gamma")

    def __str__(self) -> str:
        return f"{self.req_per_s:g} {self.of}/s ({arrivals_text(self.arrivals, self.cv)})"


class Ramp(_Counting):
    """A request rate that moves evenly from one value to another."""

    _rank, _number = 3, "to_req_per_s"

    kind: Literal["ramp"] = "ramp"
    from_req_per_s: float = Field(gt=0)
    to_req_per_s: float = Field(gt=0)
    seconds: float = Field(gt=0)
    arrivals: Arrivals = Field("poisson", description="how the times between requests are distributed")
    cv: float | None = Field(None, gt=0, description="coefficient of variation of these times, with gamma")

    def __str__(self) -> str:
        return f"{self.from_req_per_s:g} to {self.to_req_per_s:g} {self.of}/s in {self.seconds:g} s"


class Stage(Strict):
    """A part of a series of rates: `req_per_s` on average for `seconds`."""

    model_config = ConfigDict(frozen=True)

    req_per_s: float = Field(ge=0, allow_inf_nan=False)
    seconds: float = Field(gt=0, allow_inf_nan=False)

    def __str__(self) -> str:
        return f"{self.req_per_s:g}:{self.seconds:g}"


class RateSeries(_Counting):
    """Request rates one after the other, such as a spike between two equal ones."""

    _rank, _number = 4, "most_req_per_s"

    kind: Literal["series"] = "series"
    stages: tuple[Stage, ...] = Field(min_length=1)
    arrivals: Arrivals = Field("poisson", description="how the times between requests are distributed")
    cv: float | None = Field(None, gt=0, description="coefficient of variation of these times, with gamma")

    def __str__(self) -> str:
        shown = [f"{stage.req_per_s:g} for {stage.seconds:g} s" for stage in self.stages[:MOST_STAGES]]
        rest = ["…"] if len(self.stages) > MOST_STAGES else []
        return f"{self.of}/s of {', '.join(shown + rest)}"

    @property
    def most_req_per_s(self) -> float:
        """Highest of the rates."""
        return max(stage.req_per_s for stage in self.stages)

    @property
    def ends_s(self) -> list[float]:
        """When each stage ends, in seconds from the start."""
        return list(accumulate(stage.seconds for stage in self.stages))


class Batch(_Level):
    """`prompts` that are all there from the start, as `bench offline` measures them."""

    _rank, _number = 5, "prompts"

    kind: Literal["batch"] = "batch"
    prompts: int = Field(ge=1)

    def __str__(self) -> str:
        return f"batch of {self.prompts:,} prompt{'' if self.prompts == 1 else 's'}"

    @property
    def in_flight(self) -> int:
        return self.prompts


def arrivals_text(arrivals: Arrivals, cv: float | None) -> str:
    """`poisson`, `gamma, CV 2`."""
    return arrivals if cv is None else f"{arrivals}, CV {cv:g}"


#: One load of a run.
Load = Annotated[
    TraceLoad | ClosedLoop | RequestRate | Ramp | RateSeries | Batch, Field(discriminator="kind")
]

_ADAPTER: TypeAdapter[Load] = TypeAdapter(Load)


def load_text(load: Load) -> str:
    """A load as one line of JSON, the same for the same load: what tables hold in their column `load`."""
    return load.model_dump_json()


@cache
def parse_load(text: str) -> Load:
    """The load that `load_text` wrote. Raises ValidationError for other text."""
    return _ADAPTER.validate_json(text)


def from_light_to_heavy(loads: Iterable[Load]) -> list[Load]:
    """Each load once."""
    return sorted(set(loads), key=lambda load: load.weight)


def requests_at(load: Load, n: int, rounds: int | None) -> int:
    """Return how many requests are sent at a load: `n`, and in a closed loop `rounds` for each in flight."""
    if isinstance(load, Batch):
        return load.prompts
    return n if not isinstance(load, ClosedLoop) else max(n, (rounds or 0) * load.concurrency)


def heaviest(loads: Iterable[Load]) -> Load:
    """The smallest scale, the most requests in flight, the highest rate."""
    return from_light_to_heavy(loads)[-1]
