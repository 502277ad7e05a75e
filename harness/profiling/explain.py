"""Takes differences between engines apart: only those that the verdicts call one, and as far as is known.

- TTFT by its waterfall (harness/metrics/summary.py): what client and engine said of every request.
- Time per token by the profiles: a running request gets a token a step, so its mean is that of all steps; the
  step of each kind falls into categories and idle time (harness/profiling/reading/figures.py). A profiler
  slows the host down and leaves a GPU's kernels as long as they are: where that makes its steps longer than
  the benchmark's, idle time is what its kernels leave of the benchmark's step.
- End to end by TTFT and the tokens after the first.

The result is data; harness/report/tables/profiles.py has the words for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from harness.profiling.reading.figures import CATEGORIES
from harness.schema.base import Verdict
from harness.schema.fairness import Part
from harness.schema.load import Load
from harness.schema.profile import Gap, GapPart, Level, ProfiledStep, ProfileFigures, ProfileRun, Tool
from harness.schema.results import OnlineResults, OnlineSummary

#: Verdicts by which a difference is looked into, by the metric whose mean is taken apart.
TRIGGERS = {"ttft_ms": ("ttft_ms",), "itl_ms": ("itl_ms", "tpot_ms"), "e2e_ms": ("e2e_ms",)}

#: The part of TTFT outside the engine, if a head that comes with the first token hides what is before and
#: after.
OUTSIDE = "outside the engines' own times (HTTP, tokenizing, delivery)"
#: Of the time per token: what the steps with prompts add.
PROMPTS = "steps with others' prompts in them"
_TTFT_PARTS: tuple[Part, ...] = ("http", "queue", "prefill", "delivery")


#: A profiled step that differs by more from the benchmark's is not representative.
TOLERANCE = 0.20
#: The first that has figures is taken: torch's know operators, nsys's disturb less.
TOOLS: tuple[Tool, ...] = ("nsys", "torch")


class Side:
    """One engine of a gap."""

    def __init__(self, run: ProfileRun, figures: ProfileFigures) -> None:
        self.run, self.figures, self.level = run, figures, run.level
        self.decode = figures.steps.get("decode")

    @property
    def prefill_ms(self) -> float:
        """Time that the steps with prompts in them add to the mean step."""
        return self.figures.step_ms - (self.decode.period_ms if self.decode else 0.0)

    @property
    def prefill_busy_ms(self) -> float:
        """Time that they add to the mean step's kernels."""
        return self.figures.busy_ms - (self.decode.busy_ms if self.decode else 0.0)

    @property
    def left_ms(self) -> float:
        """Rest of the benchmark's step beside the profiled kernels."""
        return max(0.0, (self.level.step_ms or 0.0) - self.figures.busy_ms)

    @property
    def representative(self) -> bool:
        """Tell whether the profiled step takes about as long as the benchmark's."""
        step_ms = self.level.step_ms
        return step_ms is not None and abs(self.figures.step_ms / step_ms - 1) <= TOLERANCE

    @property
    def only_idle_longer(self) -> bool:
        """Tell whether the profiled step is the longer one, and its kernels alone fit into the benchmark's.

        Within the tolerance: a profile holds its requests in flight, the benchmark's come and go.
        """
        step_ms = self.level.step_ms
        if self.figures.device != "cuda" or step_ms is None:
            return False
        return self.figures.step_ms >= step_ms and self.figures.busy_ms <= (1 + TOLERANCE) * step_ms


_Sides = tuple[Side, Side] | None


def _sides(runs: Sequence[ProfileRun], figures: Sequence[ProfileFigures], labels: tuple[str, str]) -> _Sides:
    """Return the profiles of two engines by the same tool; None where one has none."""
    by_key = {(run.label, run.tool): run for run in runs}
    with_steps = {(profile.label, profile.tool): profile for profile in figures if profile.steps}
    for tool in TOOLS:
        a, b = ((label, tool) for label in labels)
        if a in with_steps and b in with_steps:
            return Side(by_key[a], with_steps[a]), Side(by_key[b], with_steps[b])
    return None


def explain(
    results: OnlineResults,
    runs: Sequence[ProfileRun],
    figures: Sequence[ProfileFigures],
    levels: Mapping[tuple[str, Load], Level],
) -> list[Gap]:
    """Every difference that a verdict at 5 % found between valid cells, load by load.

    Args:
        levels: the level of each engine's load in the benchmark, by label and load.
    """
    differences: dict[tuple[str, str, Load, str], dict[str, dict[str, Verdict]]] = {}
    for metric, triggers in TRIGGERS.items():
        for comparison in results.comparisons:
            if comparison.metric in triggers and comparison.verdict in ("better", "worse"):
                key = (comparison.a, comparison.b, comparison.load, metric)
                verdicts = differences.setdefault(key, {}).setdefault(comparison.metric, {})
                verdicts[comparison.statistic] = comparison.verdict
    pooled = {
        (summary.label, summary.load): summary for summary in results.summaries if summary.repeat is None
    }
    gaps = []
    for (a, b, load, metric), by_metric in differences.items():
        pair = pooled[a, load], pooled[b, load]
        if not all(summary.valid for summary in pair):
            continue
        gap = _TAKE_APART[metric](_sides(runs, figures, (a, b)), *pair)
        if gap is not None:
            of_both = {label: levels[label, load] for label in (a, b) if (label, load) in levels}
            gaps.append(gap.model_copy(update={"verdicts": by_metric, "levels": of_both}))
    return gaps


def _time_per_token(sides: _Sides, a: OnlineSummary, b: OnlineSummary) -> Gap | None:
    mean_a, mean_b = a.itl_ms.mean, b.itl_ms.mean
    if mean_a is None or mean_b is None:
        return None
    if sides is None or {side.run.load for side in sides} - {None, a.load}:
        gap = _gap("itl_ms", a, b, mean_a, mean_b, [])
        return gap.model_copy(update={"obstacle": "no profile" if sides is None else "other load"})
    representative = all(side.representative for side in sides)
    inferred = not representative and all(side.representative or side.only_idle_longer for side in sides)
    parts = [*_kernel_parts(*sides), *(_inferred_idle(*sides) if inferred else _measured_idle(*sides))]
    gap = _gap("itl_ms", a, b, mean_a, mean_b, parts)
    return gap.model_copy(
        update={
            "obstacle": None if representative or inferred else "not representative",
            "idle_inferred": inferred,
            "steps": [_step(side) for side in sides],
            "artifacts": [artifact.path for side in sides for artifact in side.run.artifacts],
        }
    )


def _kernel_parts(a: Side, b: Side) -> Iterable[GapPart]:
    if a.decode is not None and b.decode is not None:
        for category in CATEGORIES:
            of_a, of_b = a.decode.categories_ms[category], b.decode.categories_ms[category]
            if of_a or of_b:
                yield _part(f"decode step: {category}", of_a, of_b, _source(a))


def _measured_idle(a: Side, b: Side) -> Iterable[GapPart]:
    if a.decode is not None and b.decode is not None:
        idle = "GPU idle" if a.figures.device == "cuda" else "between operators (Python, hand-over, waiting)"
        yield _part(f"decode step: {idle}", a.decode.idle_ms, b.decode.idle_ms, _source(a))
    yield _part(PROMPTS, a.prefill_ms, b.prefill_ms, _source(a))


def _inferred_idle(a: Side, b: Side) -> Iterable[GapPart]:
    yield _part(f"{PROMPTS}: their kernels", a.prefill_busy_ms, b.prefill_busy_ms, _source(a))
    yield _part("GPU idle", a.left_ms, b.left_ms, "inferred: what the kernels leave of the benchmark's step")


def _source(side: Side) -> str:
    return f"{side.run.tool} profiles"


def _step(side: Side) -> ProfiledStep:
    return ProfiledStep(
        label=side.run.label,
        decode_batch=side.decode.batch if side.decode else None,
        profiled_ms=side.figures.step_ms,
        busy_ms=side.figures.busy_ms,
        benchmark_ms=side.level.step_ms,
        representative=side.representative,
    )


def _ttft(sides: _Sides, a: OnlineSummary, b: OnlineSummary) -> Gap | None:
    if a.waterfall is None or b.waterfall is None:
        return None
    of_a, of_b = ({part.part: part for part in waterfall.parts} for waterfall in (a.waterfall, b.waterfall))
    parts = []
    for name in _TTFT_PARTS:
        part_a, part_b = of_a.get(name), of_b.get(name)
        if part_a and part_b and part_a.mean_ms is not None and part_b.mean_ms is not None:
            weaker = part_a if part_a.source != "measured" else part_b
            parts.append(_part(name, part_a.mean_ms, part_b.mean_ms, f"{weaker.source}: {weaker.how}"))
    names = {part.name for part in parts}
    if {"queue", "prefill"} <= names and "http" not in names:
        rest_a, rest_b = (
            waterfall.ttft_ms - math.fsum(getattr(part, side) for part in parts)
            for waterfall, side in ((a.waterfall, "value_a"), (b.waterfall, "value_b"))
        )
        parts.append(_part(OUTSIDE, rest_a, rest_b, "inferred: what queue and prefill leave over"))
    return _gap("ttft_ms", a, b, a.waterfall.ttft_ms, b.waterfall.ttft_ms, parts)


def _end_to_end(sides: _Sides, a: OnlineSummary, b: OnlineSummary) -> Gap | None:
    means = [distribution.mean for side in (a, b) for distribution in (side.ttft_ms, side.e2e_ms)]
    if None in means:
        return None
    ttft_a, e2e_a, ttft_b, e2e_b = cast(list[float], means)
    parts = [
        _part("TTFT", ttft_a, ttft_b, "measured by the client"),
        _part("tokens after the first", e2e_a - ttft_a, e2e_b - ttft_b, "measured by the client"),
    ]
    return _gap("e2e_ms", a, b, e2e_a, e2e_b, parts)


_TAKE_APART = {"ttft_ms": _ttft, "itl_ms": _time_per_token, "e2e_ms": _end_to_end}


def _part(name: str, a: float, b: float, source: str) -> GapPart:
    return GapPart(name=name, value_a=a, value_b=b, delta=a - b, source=source)


def _gap(
    metric: str, a: OnlineSummary, b: OnlineSummary, value_a: float, value_b: float, parts: list[GapPart]
) -> Gap:
    delta = value_a - value_b
    return Gap(
        a=a.label, b=b.label, load=a.load, metric=metric, verdicts={},
        value_a=value_a, value_b=value_b, delta=delta,
        parts=parts, unexplained=delta - math.fsum(part.delta for part in parts),
    )  # fmt: skip
