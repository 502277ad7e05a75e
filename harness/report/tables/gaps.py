"""Differences between engines taken apart, in words and as tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from harness.report.tables.table import Cell, Column, Table, number_cell
from harness.report.text.numbers import DASH, decimals, number, signed
from harness.schema.metrics import METRICS
from harness.schema.profile import Gap, GapPart

#: Parts that leave more than this share of a difference do not explain it.
ENOUGH = 0.5

_OBSTACLES = {
    "no profile": "there is no profile of both engines",
    "other load": "the profile is of another load",
    "not representative": "the profile is not representative",
}


def gap_table(gap: Gap) -> Table:
    """One difference and its parts."""
    heads = ("part", gap.a, gap.b, "difference", "source")
    columns = [Column(head, numeric=head not in ("part", "source")) for head in heads]
    values = [gap.value_a, gap.value_b, gap.delta, *(part.delta for part in gap.parts)]
    places = decimals(values)

    def row(name: str, a: float | None, b: float | None, delta: float, source: str) -> list[Cell]:
        shown = [Cell(DASH) if value is None else Cell(number(value, places), value) for value in (a, b)]
        return [Cell(name), *shown, Cell(signed(delta, places), delta), Cell(source)]

    term = METRICS[gap.metric]
    verdicts = [f"{METRICS[metric].label} {name}" for metric, by in gap.verdicts.items() for name in by]
    found = f"by the client; a difference in {', '.join(verdicts)}"
    rows = [row(f"{term.label}, mean", gap.value_a, gap.value_b, gap.delta, found)]
    rows += [row(part.name, part.value_a, part.value_b, part.delta, part.source) for part in gap.parts]
    rows.append(row("not explained", None, None, gap.unexplained, "what the parts leave over"))
    title = f"{_pair(gap)}: {conclusion(gap)}"
    notes = [f"{note}." for note in _notes(gap)]
    if gap.artifacts:
        notes.append(f"From {' and '.join(gap.artifacts)}.")
    return Table(f"gap-{gap.metric}", title, columns, rows, notes)


def gaps_table(gaps: Sequence[Gap]) -> Table:
    """Every difference in a row: its size, the part that adds most, and what the parts leave over."""
    heads = (
        "metric",
        "A",
        "B",
        "load",
        "A, ms",
        "B, ms",
        "difference, ms",
        "largest part",
        "not explained, ms",
    )
    words = ("metric", "A", "B", "load", "largest part")
    rows = []
    for gap in gaps:
        places = decimals([gap.value_a, gap.value_b, gap.delta])
        rows.append(
            [
                *map(Cell, (METRICS[gap.metric].label, gap.a, gap.b, str(gap.load))),
                number_cell(gap.value_a, places),
                number_cell(gap.value_b, places),
                Cell(signed(gap.delta, places), gap.delta),
                Cell(_largest(gap.parts).partition(" is ")[2] or DASH, remark=conclusion(gap)),
                Cell(signed(gap.unexplained, places), gap.unexplained),
            ]
        )
    columns = [Column(head, numeric=head not in words) for head in heads]
    return Table("gaps", "Differences, taken apart", columns, rows)


def unexplained(gaps: Sequence[Gap]) -> list[str]:
    """The differences of which no part is known, a line for each reason."""
    by_reason: dict[str, list[str]] = {}
    for gap in gaps:
        by_reason.setdefault(conclusion(gap), []).append(_pair(gap))
    return [f"{'; '.join(pairs)}: {reason}." for reason, pairs in by_reason.items()]


def conclusion(gap: Gap) -> str:
    """The largest part where the parts make up enough of the difference; else why they do not."""
    if gap.obstacle is not None:
        seen = f"; in it, {_largest(gap.parts)}" if gap.parts else ""
        return f"not explained: {_OBSTACLES[gap.obstacle]}{seen}"
    left = f"{signed(gap.unexplained, 2)} ms of {signed(gap.delta, 2)} ms is"
    if not gap.delta or abs(gap.unexplained) > ENOUGH * abs(gap.delta):
        said = f"not explained: {left} left over"
    else:
        said = _largest(gap.parts)
        said = f"{said}; {left} not explained" if round(gap.unexplained, 2) else said
    return f"{said}; idle time is inferred, as the profiler makes steps longer" if gap.idle_inferred else said


def _largest(parts: Sequence[GapPart]) -> str:
    """The part that adds most in the direction in which all parts together differ."""
    total = math.fsum(part.delta for part in parts)
    towards = [part for part in parts if part.delta * total > 0]
    if not towards:
        return "nothing differs"
    largest = max(towards, key=lambda part: abs(part.delta))
    return f"the largest part of {signed(total, 2)} ms is {largest.name}, {signed(largest.delta, 2)} ms"


def _notes(gap: Gap) -> Iterator[str]:
    """The load of both engines in the benchmark, and how their profiles compare with it."""
    for label, level in gap.levels.items():
        yield (
            f"{label}: {level.running:.1f} requests running on average, "
            f"{level.in_flight} in flight, when tokens came"
        )
    for step in gap.steps:
        if step.decode_batch is not None:
            yield f"{step.label}: {step.decode_batch:.1f} requests in a profiled decode step"
        if step.benchmark_ms is None:
            yield f"{step.label}: there is no benchmark to compare the profiled steps with"
        elif not step.representative:
            longer = step.profiled_ms / step.benchmark_ms - 1
            yield (
                f"{step.label}: not representative: a step took {step.profiled_ms:.2f} ms in the profile and "
                f"{step.benchmark_ms:.2f} ms in the benchmark ({100 * longer:+.0f} %)"
            )
        if gap.idle_inferred and step.busy_ms >= (step.benchmark_ms or 0.0):
            yield (
                f"{step.label}: its kernels alone took {step.busy_ms:.2f} ms a step, more than the "
                "benchmark's step: more requests were held in flight than ran there, and no idle time can be "
                "inferred"
            )


def _pair(gap: Gap) -> str:
    return f"{METRICS[gap.metric].label} of {gap.a} against {gap.b}, {gap.load}"
