"""The noise floor of an A/A run, and how many repeats a difference needs."""

from __future__ import annotations

from collections.abc import Sequence

from harness.metrics.digits import per_cent
from harness.metrics.estimates import Key
from harness.metrics.intervals import LEVEL
from harness.metrics.power import POWER
from harness.report.tables.differences import repeats_to_find, statistic_name
from harness.report.tables.table import Cell, Column, Table
from harness.report.text.load_words import head_of, load_number
from harness.report.text.numbers import DASH, decimals, number, plural
from harness.schema.compare_results import EFFECTS
from harness.schema.load import Load
from harness.schema.metrics import latencies, rates
from harness.schema.results import Comparison

#: The statistics of a run's plan for more repeats.
PLANNED: tuple[Key, ...] = (
    *((metric, statistic) for metric in latencies("headline") for statistic in ("p50", "p99")),
    *((rate, rate) for rate in rates("headline")),
)


def noise_tables(comparisons: Sequence[Comparison]) -> list[Table]:
    """The noise floor of an A/A run: one table an engine, a row a load and statistic."""
    heads = [
        head_of(comparison.load for comparison in comparisons),
        "statistic",
        "A",
        "B",
        "noise",
        "A against B",
        *(f"repeats to find {e}" for e in EFFECTS),
    ]
    plans = any(comparison.spread is not None for comparison in comparisons)
    heads = heads if plans else heads[: -len(EFFECTS)]
    columns = [Column(head, numeric=head not in ("statistic", "A against B")) for head in heads]
    by_engine: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        if comparison.a.endswith(" (A)") and comparison.b == f"{comparison.a.removesuffix(' (A)')} (B)":
            by_engine.setdefault(comparison.a.removesuffix(" (A)"), []).append(comparison)
    return [
        Table(
            "noise",
            f"{engine} against itself: {_verdict_on_noise(found)}",
            columns,
            [_noise_row(comparison)[: len(columns)] for comparison in found],
        )
        for engine, found in by_engine.items()
    ]


def planning_tables(comparisons: Sequence[Comparison]) -> list[Table]:
    """How many repeats a difference between two engines of a run needs; nothing where none has several."""
    known: dict[tuple[str, str, Load], dict[Key, Comparison]] = {}
    for comparison in comparisons:
        if comparison.spread is not None:
            known.setdefault((comparison.a, comparison.b, comparison.load), {})[
                comparison.metric, comparison.statistic
            ] = comparison
    if not known:
        return []
    planned = [key for key in PLANNED if any(key in found for found in known.values())]
    columns = [
        *(Column(head, numeric=False) for head in ("engines", head_of(load for *_, load in known))),
        *(Column(statistic_name(*key).partition(",")[0]) for key in planned),
    ]
    rows = [
        [
            Cell(f"{a} and {b}"),
            Cell(load_number(load)),
            *(Cell(" / ".join(repeats_to_find(found[key])) if key in found else DASH) for key in planned),
        ]
        for (a, b, load), found in known.items()
    ]
    title = f"Repeats of each engine that find a difference of {' / '.join(EFFECTS)}"
    note = f"With a chance of {per_cent(POWER)}, for all comparisons of the run together."
    return [Table("planning", title, columns, rows, (note,))]


def _verdict_on_noise(comparisons: Sequence[Comparison]) -> str:
    """The verdict of one A/A run."""
    wrong = sum(comparison.verdict in ("better", "worse") for comparison in comparisons)
    known = sum(comparison.verdict != "not enough data" for comparison in comparisons)
    said = f"a difference in {wrong}" if wrong else "no difference"
    return f"{said} of {plural(known, 'comparison')}, at {per_cent(LEVEL)} for all together"


def _noise_row(comparison: Comparison) -> list[Cell]:
    half = None if comparison.ci is None else (comparison.ci[1] / comparison.ci[0]) ** 0.5 - 1
    places = decimals([comparison.value_a, comparison.value_b])
    return [
        Cell(load_number(comparison.load)),
        Cell(statistic_name(comparison.metric, comparison.statistic)),
        Cell(number(comparison.value_a, places), comparison.value_a),
        Cell(number(comparison.value_b, places), comparison.value_b),
        Cell(DASH if half is None else f"±{per_cent(half, 1)}", half),
        Cell(comparison.verdict),
        *map(Cell, repeats_to_find(comparison)),
    ]
