"""Two runs compared: differences, gates, and how to read them."""

from __future__ import annotations

from harness.metrics.intervals import ASSUMED_SPREAD, LEVEL, Ends
from harness.metrics.power import MAX_REPEATS, POWER
from harness.report.tables.table import Cell, Column, Table
from harness.report.text.load_words import head_of, load_number
from harness.report.text.numbers import DASH, decimals, number, plural
from harness.schema.compare import EFFECTS, CompareResults, Difference, Gated
from harness.schema.metrics import METRICS
from harness.schema.results import Comparison

_COLUMNS = [
    Column("statistic", numeric=False),
    Column("A"),
    Column("B"),
    Column("change"),
    Column("95 % interval", numeric=False),
    Column("verdict on B", numeric=False),
    Column(f"repeats to find {' / '.join(EFFECTS)}"),
]


def difference_tables(results: CompareResults) -> list[Table]:
    """One table an engine and load: every statistic of A and B, the change, and what is known of it."""
    places = dict.fromkeys((one.engine_a, one.engine_b, one.load) for one in results.differences)
    return [
        Table(
            "difference",
            f"{a if a == b else f'{b} (B) against {a} (A)'}, {load}",
            _COLUMNS,
            [
                _row(one)
                for one in results.differences
                if (one.engine_a, one.engine_b, one.load) == (a, b, load)
            ],
        )
        for a, b, load in places
    ]


def gates_table(results: CompareResults) -> Table:
    """One line a gate, engine and load."""
    load = head_of(one.load for one in results.gates)
    heads = ("gate", "engine", load, "found", "95 % interval", "outcome", "why")
    columns = [Column(head, numeric=head in (load, "found")) for head in heads]
    return Table("gates", "Gates", columns, [_gate(one) for one in results.gates])


def caveats(results: CompareResults) -> list[str]:
    """What must be known to read the tables."""
    pairs = len({(one.engine_a, one.engine_b) for one in results.differences}) or 1
    count = results.comparisons
    said = [
        f"{plural(count, 'comparison')}. The verdicts on {'each engine' if pairs > 1 else 'the engine'} hold "
        f"together: a chance of {LEVEL:.0%} at most that any of them finds a difference that is none (Holm). "
        f"Each interval holds alone: where nothing differs, about {LEVEL * count:.0f} of {count} exclude 0.",
        f"Repeats to find a difference: of each run, for a verdict with {POWER:.0%} chance.",
    ]
    if any(min(one.repeats_a, one.repeats_b) == 1 for one in results.differences):
        said.append(
            f"One repeat does not show how repeats differ: a spread of {ASSUMED_SPREAD:.0%} is assumed."
        )
    return said


def repeats_to_find(one: Comparison | Difference) -> list[str]:
    """How many, for each of `EFFECTS`; a dash where one repeat shows no spread."""
    return [DASH if one.spread is None else _many(count) for count in one.repeats_to_find.values()]


def _row(one: Difference) -> list[Cell]:
    places = decimals([one.value_a, one.value_b])
    verdict: str = one.verdict
    if one.missing_samples:
        what = METRICS[one.metric].sample
        verdict += f": {plural(one.missing_samples, what)} more needed"
    return [
        Cell(statistic_name(one.metric, one.statistic)),
        Cell(number(one.value_a, places), one.value_a),
        Cell(number(one.value_b, places), one.value_b),
        Cell(_change(one.ratio), one.ratio),
        Cell(_ends(one.ratio_ci)),
        Cell(verdict),
        Cell(" / ".join(repeats_to_find(one))),
    ]


def _gate(one: Gated) -> list[Cell]:
    if one.value is None:
        value, ends = DASH, DASH
    elif one.relative:
        value, ends = _change(one.value), _ends(one.ci)
    else:
        places = 4 if "error" in one.gate else decimals([one.value])
        value = number(one.value, places)
        ends = DASH if one.ci is None else " to ".join(number(end, places) for end in one.ci)
    engine = one.engine_b if one.engine_a == one.engine_b else f"{one.engine_b} against {one.engine_a}"
    texts = (one.gate, engine, load_number(one.load), value, ends, one.outcome, one.reason)
    return [Cell(text) for text in texts]


def statistic_name(metric: str, statistic: str) -> str:
    """`TTFT p99, ms`; of a rate `output tok/s`."""
    term = METRICS[metric]
    return term.label if statistic == metric else f"{term.label} {statistic}, {term.unit}"


def _many(repeats: int | None) -> str:
    return f"over {MAX_REPEATS:,}" if repeats is None else str(repeats)


def _change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _ends(ci: Ends | None) -> str:
    return DASH if ci is None else f"{_change(ci[0])} to {_change(ci[1])}"
