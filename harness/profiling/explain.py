"""Takes differences between engines apart: only those that the verdicts call one, and as far as is known.

- TTFT by its waterfall (harness/metrics/waterfall.py): what client and engine said of every request.
- Time per token by the profiles: a running request gets a token a step, so its mean is that of all steps; the
  step of each kind falls into categories and idle time (harness/profiling/reading/figures.py). A profiler
  slows the host down and leaves a GPU's kernels as long as they are: where that makes its steps longer than
  the benchmark's, idle time is what its kernels leave of the benchmark's step.
- End to end by TTFT and the tokens after the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from harness.metrics.glossary import GLOSSARY
from harness.profiling.reading.figures import CATEGORIES
from harness.profiling.sides import Profiled, Side
from harness.report.text.numbers import signed
from harness.schema.fairness import Part
from harness.schema.load import LoadLevel
from harness.schema.profile import Gap, GapPart, Level, ProfileFigures, ProfileRun
from harness.schema.results import Comparison, OnlineResults, OnlineSummary, Verdict

#: Parts that leave more than this share of a difference do not explain it.
ENOUGH = 0.5
#: Verdicts by which a difference is looked into, by the metric whose mean is taken apart.
TRIGGERS = {"ttft_ms": ("ttft_ms",), "itl_ms": ("itl_ms", "tpot_ms"), "e2e_ms": ("e2e_ms",)}

#: Of TTFT, where nobody tells before from after: a head that comes with the first token hides it.
OUTSIDE = "not told apart: HTTP, tokenizing, delivery"
#: Of the time per token: what the steps with prompts add.
PROMPTS = "steps with others' prompts in them"
_TTFT_PARTS: tuple[Part, ...] = ("http", "queue", "prefill", "delivery")


def explain(
    results: OnlineResults,
    runs: Sequence[ProfileRun],
    figures: Sequence[ProfileFigures],
    levels: Mapping[tuple[str, LoadLevel], Level],
) -> list[Gap]:
    """Every difference that a verdict at 5 % found between valid cells, load by load.

    Args:
        levels: what each engine's load came to in the benchmark, by label and load.
    """
    found: dict[tuple[str, str, LoadLevel, str], dict[str, Verdict]] = {}
    for metric, triggers in TRIGGERS.items():
        for one in results.comparisons:
            if one.metric in triggers and one.verdict in ("better", "worse"):
                key = (one.a, one.b, one.load, metric)
                found.setdefault(key, {})[_statistic(one)] = one.verdict
    pooled = {(one.label, one.load): one for one in results.summaries if one.repeat is None}
    profiled = Profiled(runs, figures)
    gaps = []
    for (a, b, load, metric), verdicts in found.items():
        pair = pooled[a, load], pooled[b, load]
        if not all(one.valid for one in pair):
            continue
        gap = _TAKE_APART[metric](profiled, *pair)
        if gap is not None:
            batches = [_batch(label, levels[label, load]) for label in (a, b) if (label, load) in levels]
            update = {"verdicts": verdicts, "notes": [*batches, *gap.notes]}
            gaps.append(gap.model_copy(update=update))
    return gaps


def _time_per_token(profiled: Profiled, a: OnlineSummary, b: OnlineSummary) -> Gap | None:
    mean_a, mean_b = a.itl_ms.mean, b.itl_ms.mean
    if mean_a is None or mean_b is None:
        return None
    sides = profiled.pair(a.label, b.label)
    if sides is None or {one.run.load for one in sides} - {None, a.load}:
        why = "there is no profile of both engines" if sides is None else "the profile is of another load"
        return _gap("itl_ms", a, b, mean_a, mean_b, [], f"not explained: {why}")
    representative = all(one.representative for one in sides)
    inferred = not representative and all(one.representative or one.only_idle_longer for one in sides)
    parts = [*_kernel_parts(*sides), *(_inferred_idle(*sides) if inferred else _measured_idle(*sides))]
    notes = [f"{one.run.label}: {note}" for one in sides for note in _notes(one, inferred)]
    gap = _gap("itl_ms", a, b, mean_a, mean_b, parts, "")
    conclusion = _conclude(gap)
    if inferred:
        conclusion += "; idle time is inferred, as the profiler makes steps longer"
    elif not representative:
        conclusion = f"not explained: the profile is not representative; in it, {_largest(parts)}"
    artifacts = [one.path for side in sides for one in side.run.artifacts]
    return gap.model_copy(update={"conclusion": conclusion, "notes": notes, "artifacts": artifacts})


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


def _notes(side: Side, inferred: bool) -> Iterable[str]:
    level, deviation = side.level, side.deviation
    if side.decode is not None and side.decode.batch is not None:
        yield f"{side.decode.batch:.1f} requests in a profiled decode step"
    if level.step_ms is None:
        yield "there is no benchmark to compare the profiled steps with"
    elif deviation is not None and not side.representative:
        yield (
            f"not representative: a step took {side.figures.step_ms:.2f} ms in the profile and "
            f"{level.step_ms:.2f} ms in the benchmark ({deviation:+.0%})"
        )
    if inferred and not side.left_ms:
        yield (
            f"its kernels alone took {side.figures.busy_ms:.2f} ms a step, more than the benchmark's step: "
            "more requests were held in flight than ran there, and no idle time can be inferred"
        )


def _ttft(profiled: Profiled, a: OnlineSummary, b: OnlineSummary) -> Gap | None:
    if a.waterfall is None or b.waterfall is None:
        return None
    of_a, of_b = ({one.part: one for one in found.parts} for found in (a.waterfall, b.waterfall))
    parts = []
    for name in _TTFT_PARTS:
        one, other = of_a.get(name), of_b.get(name)
        if one and other and one.mean_ms is not None and other.mean_ms is not None:
            weaker = one if one.source != "measured" else other
            parts.append(_part(name, one.mean_ms, other.mean_ms, f"{weaker.source}: {weaker.how}"))
    known = {part.name for part in parts}
    if {"queue", "prefill"} <= known and "http" not in known:
        rest_a, rest_b = (
            found.ttft_ms - sum(getattr(part, side) for part in parts)
            for found, side in ((a.waterfall, "value_a"), (b.waterfall, "value_b"))
        )
        parts.append(_part(OUTSIDE, rest_a, rest_b, "inferred: what queue and prefill leave over"))
    gap = _gap("ttft_ms", a, b, a.waterfall.ttft_ms, b.waterfall.ttft_ms, parts, "")
    return gap.model_copy(update={"conclusion": _conclude(gap)})


def _end_to_end(profiled: Profiled, a: OnlineSummary, b: OnlineSummary) -> Gap | None:
    means = [one.mean for side in (a, b) for one in (side.ttft_ms, side.e2e_ms)]
    if None in means:
        return None
    ttft_a, e2e_a, ttft_b, e2e_b = cast(list[float], means)
    parts = [
        _part("TTFT", ttft_a, ttft_b, "measured by the client"),
        _part("tokens after the first", e2e_a - ttft_a, e2e_b - ttft_b, "measured by the client"),
    ]
    gap = _gap("e2e_ms", a, b, e2e_a, e2e_b, parts, "")
    return gap.model_copy(update={"conclusion": _conclude(gap)})


_TAKE_APART = {"ttft_ms": _ttft, "itl_ms": _time_per_token, "e2e_ms": _end_to_end}


def _batch(label: str, level: Level) -> str:
    return (
        f"{label}: {level.running:.1f} requests running on average, "
        f"{level.in_flight} in flight, when tokens came"
    )


def _part(name: str, a: float, b: float, source: str) -> GapPart:
    return GapPart(name=name, value_a=a, value_b=b, delta=a - b, source=source)


def _gap(
    metric: str,
    a: OnlineSummary,
    b: OnlineSummary,
    value_a: float,
    value_b: float,
    parts: list[GapPart],
    conclusion: str,
) -> Gap:
    delta = value_a - value_b
    return Gap(
        a=a.label, b=b.label, scale=a.scale, concurrency=a.concurrency, metric=metric, verdicts={},
        value_a=value_a, value_b=value_b, delta=delta,
        parts=parts, unexplained=delta - sum(one.delta for one in parts), conclusion=conclusion,
    )  # fmt: skip


def _conclude(gap: Gap) -> str:
    """Names the largest part where the parts make up enough of the difference; else says that they do not."""
    left = f"{signed(gap.unexplained, 2)} ms of {signed(gap.delta, 2)} ms is"
    if not gap.delta or abs(gap.unexplained) > ENOUGH * abs(gap.delta):
        return f"not explained: {left} left over"
    said = _largest(gap.parts)
    return f"{said}; {left} not explained" if round(gap.unexplained, 2) else said


def _largest(parts: Sequence[GapPart]) -> str:
    """The part that adds most in the direction in which all parts together differ."""
    total = sum(part.delta for part in parts)
    towards = [part for part in parts if part.delta * total > 0]
    if not towards:
        return "nothing differs"
    largest = max(towards, key=lambda part: abs(part.delta))
    return f"the largest part of {signed(total, 2)} ms is {largest.name}, {signed(largest.delta, 2)} ms"


def _statistic(one: Comparison) -> str:
    return f"{GLOSSARY[one.metric].short} {one.statistic}"
