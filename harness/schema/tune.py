"""What `bench tune` is asked and finds: the settings of an engine that are better than its defaults."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from harness.schema.base import Strict
from harness.schema.engine_ref import EngineName
from harness.schema.facts import Fact
from harness.schema.space import Settings, Space
from harness.schema.verdict import Verdict

State = Literal["default", "finalist", "left out", "failed"]


class Configuration(Strict):
    """One point of a space. The first of a plan is the engine as it is, whose `settings` are empty."""

    label: str = Field(description="as in tables and figures")
    variant: str | None = Field(description="its name in the run; null: the default")
    settings: Settings = Field(default_factory=dict, description="by option or variable")


class TunePlan(Strict):
    """How the settings of an engine are tuned."""

    engine: EngineName
    base: str | None = Field(None, description="variant that every configuration is laid over")
    space: Space = Field(description="without what has no effect on the run's device")
    configurations: list[Configuration] = Field(description="the default, then those drawn from the space")
    objective: str = Field(description="what is to be best: tpot_p50, output_tok_per_s")
    limits: str | None = Field(None, description="as given with --slo; all must hold")
    reduction: int = Field(3, ge=2, description="one in so many goes on at each rung")
    finalists: int = Field(2, ge=1, description="compared with the default at the end")

    @property
    def rounds(self) -> int:
        """Repeats before the comparison at the end, at most: 1, or with a reduction of 3 also 3, 9 …

        Repeats are counted on from here in the comparison.
        """
        rung, left = 1, len(self.configurations) / self.reduction
        while left > self.finalists:
            rung, left = rung * self.reduction, left / self.reduction
        return rung

    def cells(self, repeats: int) -> int:
        """About how many are measured, with so many repeats of the default and each finalist at the end."""
        count = len(self.configurations)
        return count + self.later(count, 1) + (1 + min(self.finalists, count - 1)) * repeats

    def later(self, going: float, repeats: int) -> int:
        """About how many cells follow so many repeats of `going` configurations, before the comparison."""
        cells, rung = 0.0, 1
        while rung < repeats:
            rung *= self.reduction
        for done in range(repeats, self.rounds):
            if done == rung:
                rung, going = rung * self.reduction, max(going / self.reduction, 1.0)
            cells += going
        return round(cells)


class ConfigurationFound(Configuration):
    """What was measured of a configuration before the comparison at the end."""

    state: State
    values: list[float | None] = Field(
        default_factory=list, description="the objective in each repeat; null: no request succeeded"
    )
    invalid: int = Field(0, description="cells among them that are not valid")
    limits: dict[str, float | None] = Field(default_factory=dict, description="mean over repeats, by limit")
    reason: str = Field("", description="of a configuration that failed")


class FinalistFound(Strict):
    """A finalist against the default, by repeats of their own."""

    label: str
    value: float | None = Field(description="of the objective; null: it could not be measured")
    default: float | None
    ratio: float | None = Field(description="value / default")
    ci: tuple[float, float] | None = Field(None, description="of the ratio, 95 %")
    verdict: Verdict = Field(description="of the finalist, at 5 % for all finalists together (Holm)")
    repeats: tuple[int, int] = Field(description="of the finalist and of the default")
    within: bool | None = Field(description="whether it is within every limit; null: there are none")


class TuneResults(Strict):
    """What a tuning found."""

    plan: TunePlan
    configurations: list[ConfigurationFound]
    finalists: list[FinalistFound]
    best: str | None = Field(description="label of the best finalist that is better than the default")
    default_invalid: Fact | None = Field(
        None, description="why cells of the default are invalid, so that nothing is best; null: all are valid"
    )
