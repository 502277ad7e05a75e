"""The plan and the results of `bench search`: the highest load of each engine within limits."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from harness.schema.base import OfEngine, Strict
from harness.schema.limits import is_latency, parse_gate
from harness.schema.load import Counted, Load, TraceLoad
from harness.schema.metric import MS

Verdict = Literal["more", "less", "no difference shown"]
SearchAxis = Literal["rate", "concurrency", "agents", "scale"]
Bound = Literal["lightest", "heaviest"]


class Axis(NamedTuple):
    """A kind of load that is searched: its unit, its field, and the usual bounds and first load."""

    unit: str
    field: str
    lowest: float
    highest: float
    first: float


AXES: dict[SearchAxis, Axis] = {
    "rate": Axis("{of}/s", "req_per_s", 0.1, 10_000.0, 1.0),
    "concurrency": Axis("{of} in flight", "concurrency", 1, 512, 4),
    "agents": Axis("agents", "concurrency", 1, 512, 4),
    "scale": Axis("times the trace's own rate", "scale", 0.05, 100.0, 1.0),
}
#: Least seconds of a rate's or a scale's cell that are not measured, and that are; each also as a multiple of
#: the largest limit on a latency. A queue takes some of these to become as long as its load makes it.
SETTLE_S, SETTLE_LIMITS = 3.0, 10
MEASURED_S, MEASURED_LIMITS = 30.0, 150
#: Requests of a cell of a rate at most, where the heaviest load is not given.
MOST_REQUESTS = 1_000_000
#: Requests, or jobs, for each one in flight.
ROUNDS = 5
#: Kinds of loads that keep a whole number in flight.
CLOSED: tuple[SearchAxis, ...] = ("concurrency", "agents")


def cell_times(by: SearchAxis, limits: str) -> dict[str, float]:
    """Return `settle` and `min_duration` of a search's cells; none of a closed loop."""
    if by in CLOSED:
        return {}
    longest = max((term.limit / MS for term in parse_gate(limits, "limit") if is_latency(term)), default=0.0)
    return {
        "settle": max(SETTLE_S, SETTLE_LIMITS * longest),
        "min_duration": max(MEASURED_S, MEASURED_LIMITS * longest),
    }


class SearchPlan(Strict):
    """The search for a load, whose value grows from light to heavy; the value of a trace is 1 / scale."""

    by: SearchAxis
    of: Counted = Field("requests", description="what a rate or a number in flight counts")
    limits: str = Field(description="as given with --slo; all must hold")
    lowest: float = Field(gt=0)
    highest: float = Field(gt=0)
    first: float = Field(gt=0, description="the load that is tried first")
    cells: int = Field(16, ge=3, description="measured for each engine at most")
    cells_per_start: int = Field(4, ge=1, description="measured before an engine's server is started again")
    tolerance: float = Field(0.1, gt=0, description="a search ends when its interval is narrower than this")
    max_seconds: float | None = Field(
        None, gt=0, description="no start and no cell begins that would not end in them, by the one before"
    )

    @classmethod
    def make(cls, by: SearchAxis, limits: str, **values: Any) -> Self:
        """Return the plan with these values of its fields, and the usual bounds where there are none."""
        usual = AXES[by]
        chosen = {name: value for name, value in values.items() if value is not None}
        lowest, highest = chosen.get("lowest", usual.lowest), chosen.get("highest", usual.highest)
        if by == "rate" and "highest" not in chosen:
            highest = min(highest, MOST_REQUESTS / sum(cell_times(by, limits).values()))
        first = min(max(usual.first, lowest), highest)
        plan = {"by": by, "limits": limits, "lowest": lowest, "highest": highest, "first": first}
        return cls.model_validate(plan | chosen)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for value in self.ends if self.closed else ():
            if value != round(value):
                raise ValueError(f"--by {self.by}: {value:g} is no whole number")
        if not self.lowest < self.highest:
            raise ValueError(f"--lowest {self.lowest:g} is not below --highest {self.highest:g}")
        if not self.lowest <= self.first <= self.highest:
            raise ValueError(f"--first {self.first:g} is not between {self.lowest:g} and {self.highest:g}")
        return self

    @property
    def closed(self) -> bool:
        """True if its loads keep a whole number in flight."""
        return self.by in CLOSED

    @property
    def unit(self) -> str:
        return AXES[self.by].unit.format(of=self.of)

    @property
    def ends(self) -> list[float]:
        """The lightest load, the first that is tried, the heaviest; each once."""
        return sorted({self.lowest, self.first, self.highest})

    def unit_of(self, value: float) -> str:
        """The unit of a load of that value: one request in flight is no requests in flight."""
        singular = "agent" if self.by == "agents" else self.unit.replace("s in flight", " in flight")
        return singular if value == 1 else self.unit

    def amount(self, value: float) -> str:
        """A bound in words: `12 requests in flight`."""
        return f"{value:g} {self.unit_of(value)}"

    def settings(self) -> dict[str, object]:
        """The settings of a run's loads that the search means."""
        match self.by:
            case "scale":
                return {"scales": [1 / value for value in self.ends]}
            case "concurrency" | "agents":
                return {"concurrency": [round(value) for value in self.ends], "rounds": ROUNDS}
            case "rate":
                return {"request_rate": self.ends}

    def times(self) -> dict[str, float]:
        """Return `settle` and `min_duration` of cells where no option names a part; none of a closed loop."""
        return cell_times(self.by, self.limits)

    def load(self, value: float, like: Load) -> Load:
        """The load with that value; in all else it is as `like`."""
        number = 1 / value if self.by == "scale" else round(value) if self.closed else value
        return like.model_copy(update={AXES[self.by].field: number})

    def value(self, load: Load) -> float:
        """Return the value of a load in the unit of the search."""
        return 1 / load.scale if isinstance(load, TraceLoad) else load.value


class SearchTrial(Strict):
    """One cell of a search."""

    load: Load
    value: float = Field(description="of the load, in the unit of the search")
    repeat: int
    start: int = Field(description="which start of the engine's server it was, from 0")
    met: bool | None = Field(description="whether every limit held; null: invalid, not counted")
    measured: dict[str, float | None] = Field(description="by limit; null: no request succeeded")
    behind: bool = Field(False, description="whether the engine fell behind, which misses all limits")
    watts: float | None = Field(None, description="mean power by the energy counters; null: not known")


class CapacityFound(OfEngine):
    """The load at which one engine's cells meet the limits every second time."""

    value: float | None = Field(
        description="in the unit of the search; null: no cell or too few cells decide it"
    )
    low: float | None = Field(None, description="of the 95 % interval; null: below the lowest load")
    high: float | None = Field(None, description="of the 95 % interval; null: above the highest load")
    bound: Bound | None = Field(
        None, description="the lightest load missed the limits, or the heaviest met them; null: neither did"
    )
    trials: list[SearchTrial]
    ended: str = Field(description="why no more was measured")

    @property
    def starts(self) -> int:
        """Number of starts of the engine."""
        return len({trial.start for trial in self.trials})

    @property
    def invalid(self) -> int:
        """Cells that are not counted."""
        return sum(trial.met is None for trial in self.trials)

    @property
    def guessed(self) -> bool:
        """True if any value would be a guess: it is within the loads, and all cells said the same."""
        return self.bound is None and len({trial.met for trial in self.trials} - {None}) == 1

    @property
    def watts(self) -> float | None:
        """Mean power in the heaviest of its cells that met the limits."""
        met = [trial for trial in self.trials if trial.met and trial.watts is not None]
        return max(met, key=lambda trial: trial.value).watts if met else None

    @property
    def shown(self) -> float:
        """The load that its cells show it to carry, or 0."""
        value = self.low if self.guessed else None if self.bound == "lightest" else self.value
        return value or 0.0


class CapacityRatio(Strict):
    """The load of `a` as a multiple of that of `b`."""

    a: str
    b: str
    value: float
    low: float | None = Field(description="of the 95 % interval of all pairs together; null: open")
    high: float | None = Field(description="of the 95 % interval of all pairs together; null: open")
    verdict: Verdict = Field(description="of `a` against `b`, at 5 % for all pairs (Bonferroni)")


class SearchResults(Strict):
    """Results of a search."""

    plan: SearchPlan
    engines: list[CapacityFound]
    ratios: list[CapacityRatio] = Field([])
