"""Results of `bench compare --json`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from harness.schema.base import Strict, Verdict
from harness.schema.facts import Fact
from harness.schema.load import Load
from harness.schema.run_info import SCHEMA_VERSION

#: Differences for which the number of repeats is reported.
EFFECTS = {"5 %": 0.05, "10 %": 0.1, "20 %": 0.2}

Ends = tuple[float, float]
Outcome = Literal["pass", "regression", "inconclusive"]


class Difference(Strict):
    """One statistic of run B against run A at one load, with 95 % intervals."""

    engine_a: str
    engine_b: str
    load: Load
    metric: str
    statistic: str
    value_a: float
    value_b: float
    difference: float = Field(description="B − A, in the unit of the metric")
    difference_ci: Ends | None
    ratio: float = Field(description="B / A")
    ratio_ci: Ends | None
    adjusted_p: float | None = Field(description="of no difference, by weighted Holm over both runs")
    verdict: Verdict = Field(description="of B, at 5 % for all comparisons of both runs together")
    repeats_a: int
    repeats_b: int
    paired: bool = Field(
        False, description="whether repeats are compared one by one, as prompts are the same"
    )
    missing_samples: int = Field(description="requests, of ITL tokens, that the poorer sample lacks")
    spread: float | None = Field(
        description="standard deviation of the logarithm from repeat to repeat, where they are paired of "
        "the ratio; null if there was one"
    )
    repeats_to_find: dict[str, int | None] = Field(
        description="repeats of each that find a difference of so much; null: unknown, or too many"
    )


class Gated(Strict):
    """One gate at one load."""

    gate: str
    relative: bool = Field(description="whether the value and the limit are ratios B / A")
    engine_a: str
    engine_b: str
    load: Load
    value: float | None = Field(description="the ratio B / A, or B itself, as the gate asks")
    ci: Ends | None
    limit: float = Field(description="of that value")
    outcome: Outcome
    reason: str = ""
    needed_repeats: int | None = Field(None, description="of each, to decide it; null: unknown, or too many")


class Obstacle(Strict):
    """A reason why two runs cannot be compared. `name`: as --allow-different takes it, if it does."""

    name: str
    reason: str
    allowed: bool = False


class Disturbance(Strict):
    """Other use of the machine while an engine was measured at one load."""

    run: Literal["A", "B"]
    label: str
    load: Load
    facts: list[Fact] = Field(description="one a repeat and cause")


class CompareResults(Strict):
    """Run B against run A."""

    schema_version: Literal[1] = SCHEMA_VERSION
    a: str
    b: str
    outcome: Literal["pass", "regression", "inconclusive", "not comparable", "no gate"]
    level: float = Field(description="of every interval, and of all verdicts together")
    comparisons: int = Field(description="verdicts given")
    obstacles: list[Obstacle]
    disturbed: list[Disturbance] = Field([], description="where the machine was disturbed")
    differences: list[Difference]
    gates: list[Gated]
