"""The noise floor of an A/A run, and how many repeats a difference needs."""

from __future__ import annotations

from collections.abc import Sequence

from harness.metrics.estimates import Key
from harness.metrics.intervals import LEVEL
from harness.metrics.power import POWER
from harness.report.tables.differences import repeats_to_find, statistic_name
from harness.report.tables.table import Cell, Column, Table
from harness.report.text.load_words import head_of, load_number
from harness.report.text.numbers import DASH, decimals, number, plural
from harness.schema.compare import EFFECTS
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
        head_of(one.load for one in comparisons),
        "statistic",
        "A",
        "B",
        "noise",
        "A against B",
        *(f"repeats to find {e}" for e in EFFECTS),
    ]
    columns = [Column(head, numeric=head not in ("statistic", "A against B")) for head in heads]
    by_engine: dict[str, list[Comparison]] = {}
    for one in comparisons:
        if one.a.endswith(" (A)") and one.b == f"{one.a.removesuffix(' (A)')} (B)":
            by_engine.setdefault(one.a.removesuffix(" (A)"), []).append(one)
    return [
        Table(
            "noise",
            f"{engine} against itself: {_verdict_on_noise(found)}",
            columns,
            [_noise_row(one) for one in found],
        )
        for engine, found in by_engine.items()
    ]


def planning_tables(comparisons: Sequence[Comparison]) -> list[Table]:
    """How many repeats a difference between two engines of a run needs; nothing where none has several."""
    known: dict[tuple[str, str, Load], dict[Key, Comparison]] = {}
    for one in comparisons:
        if one.spread is not None:
            known.setdefault((one.a, one.b, one.load), {})[one.metric, one.statistic] = one
    if not known:
        return []
    columns = [
        *(Column(head, numeric=False) for head in ("engines", head_of(load for *_, load in known))),
        *(Column(statistic_name(*key).partition(",")[0]) for key in PLANNED),
    ]
    rows = [
        [
            Cell(f"{a} and {b}"),
            Cell(load_number(load)),
            *(Cell(" / ".join(repeats_to_find(found[key])) if key in found else DASH) for key in PLANNED),
        ]
        for (a, b, load), found in known.items()
    ]
    title = f"Repeats of each engine that find a difference of {' / '.join(EFFECTS)}"
    note = f"With a chance of {POWER:.0%}, for all comparisons of the pair together."
    return [Table("planning", title, columns, rows, (note,))]


def _verdict_on_noise(comparisons: Sequence[Comparison]) -> str:
    """The verdict of one A/A run."""
    wrong = sum(one.verdict in ("better", "worse") for one in comparisons)
    known = sum(one.verdict != "not enough data" for one in comparisons)
    said = f"a difference in {wrong}" if wrong else "no difference"
    return f"{said} of {plural(known, 'comparison')}, at {LEVEL:.0%} for all together"


def _noise_row(one: Comparison) -> list[Cell]:
    half = None if one.ci is None else (one.ci[1] / one.ci[0]) ** 0.5 - 1
    places = decimals([one.value_a, one.value_b])
    return [
        Cell(load_number(one.load)),
        Cell(statistic_name(one.metric, one.statistic)),
        Cell(number(one.value_a, places), one.value_a),
        Cell(number(one.value_b, places), one.value_b),
        Cell(DASH if half is None else f"±{half:.1%}", half),
        Cell(one.verdict),
        *map(Cell, repeats_to_find(one)),
    ]
