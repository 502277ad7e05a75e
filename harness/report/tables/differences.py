"""Two runs compared: differences, gates, and how to read them."""

from __future__ import annotations

from collections.abc import Sequence

from harness.metrics.digits import per_cent
from harness.metrics.intervals import LEVEL, Ends
from harness.metrics.power import MAX_REPEATS, POWER
from harness.metrics.primary import RATE, SHARE
from harness.report.best import excludes_one, says_nothing
from harness.report.tables.table import TOO_WIDE, Cell, Column, Table
from harness.report.text.cell_notices import of_repeats
from harness.report.text.load_words import head_of, load_number, where
from harness.report.text.numbers import DASH, change_text, decimals, number, plural
from harness.report.text.provenance import assumed, assumed_of_rates
from harness.schema.compare_results import EFFECTS, CompareResults, Difference, Gated
from harness.schema.load import Batch
from harness.schema.metrics import METRICS
from harness.schema.results import Comparison

#: More missing requests than this are not counted: requests of one repeat resemble each other, and more of
#: them hardly help. So many repeats do.
MOST_MISSING, ENOUGH = 1000, 5

_COLUMNS = [
    Column("A"),
    Column("B"),
    Column("change"),
    Column("95 % interval", numeric=False),
    Column("verdict on B", numeric=False),
    Column(f"repeats to find {' / '.join(EFFECTS)}"),
]


def difference_tables(results: CompareResults) -> list[Table]:
    """One table an engine and load: every statistic of A and B, the change, and what is known of it. Batches
    have few statistics: one table for each, with every engine."""
    tables: dict[tuple[str, str], list[tuple[str, Difference]]] = {}
    for difference in results.differences:
        a, b, load = difference.engine_a, difference.engine_b, difference.load
        engines = a if a == b else f"{b} (B) against {a} (A)"
        statistic = statistic_name(difference.metric, difference.statistic).removesuffix(", ms")
        what = (statistic, engines) if isinstance(load, Batch) else (engines, statistic)
        head = "engine" if isinstance(load, Batch) else "statistic"
        unit = "" if isinstance(load, Batch) else "; latencies in ms"
        tables.setdefault((f"{what[0]}, {load}{unit}", head), []).append((what[1], difference))
    plans = _spread_is_known(results)  # else the last column is empty
    columns = _COLUMNS if plans else _COLUMNS[:-1]
    return [
        Table(
            "difference",
            title,
            [Column(head, numeric=False), *columns],
            [[Cell(name), *_cells(difference)[: len(columns)]] for name, difference in rows],
        )
        for (title, head), rows in tables.items()
    ]


def _spread_is_known(results: CompareResults) -> bool:
    """Whether repeats of some statistic show how much they differ."""
    return any(difference.spread is not None for difference in results.differences)


def gates_table(results: CompareResults) -> Table:
    """One line a gate, engine and load."""
    load = head_of(gated.load for gated in results.gates)
    heads = ("gate", "engine", load, "found", "95 % interval", "outcome", "why")
    columns = [Column(head, numeric=head in (load, "found")) for head in heads]
    return Table("gates", "Gates", columns, [_gate(gated) for gated in results.gates])


def disturbances(results: CompareResults) -> list[str]:
    """A sentence for each engine and load that was measured on a disturbed machine."""
    one_run = results.a == results.b
    return [
        f"The machine was disturbed while {found.label}{'' if one_run else f' of {found.run}'} was measured "
        f"{where(found.load)}: {'; '.join(of_repeats(found.texts))}."
        for found in results.disturbed
    ]


def caveats(results: CompareResults) -> list[str]:
    """What must be known to read the tables."""
    pairs = len({(difference.engine_a, difference.engine_b) for difference in results.differences}) or 1
    count = results.comparisons
    batches = [difference for difference in results.differences if isinstance(difference.load, Batch)]
    said = [
        f"{plural(count, 'comparison')}. The verdicts on {'each engine' if pairs > 1 else 'the engine'} hold "
        f"together: a chance of {per_cent(LEVEL)} at most that any of them finds a difference that is none "
        "(Holm)."
    ]
    if not batches:
        said[0] += (
            f" TTFT and TPOT p50, with requests in flight also the output rate, share {per_cent(SHARE)} of "
            f"it. Each interval holds alone: where nothing differs, it excludes 0 with a chance of "
            f"{per_cent(LEVEL)}."
        )
    elif any(difference.metric != RATE for difference in batches):
        said[0] += f" The output rate has {per_cent(SHARE)} of it."
    if batches:
        said.append(_pairing(batches, one_run=results.a == results.b))
    if _spread_is_known(results):
        said.append(
            f"Repeats to find a difference: of each run, for a verdict with {per_cent(POWER)} chance."
        )
    if any(min(difference.repeats_a, difference.repeats_b) == 1 for difference in results.differences):
        spread = assumed_of_rates if batches else assumed
        said.append(f"One repeat does not show how repeats differ: a spread of {spread} is assumed.")
    return said


def _pairing(batches: Sequence[Difference], one_run: bool) -> str:
    """How repeats of batches are compared, and what that rests on."""
    if not all(difference.paired for difference in batches):
        return "The repeats of A and B have other prompts, which is part of how repeats differ."
    said = "Each repeat has the same prompts in A and B, so they are compared repeat by repeat."
    if one_run:
        return said
    return f"{said} Whatever else differs between the runs, such as other programs, is in the change."


def repeats_to_find(comparison: Comparison | Difference) -> list[str]:
    """How many, for each of `EFFECTS`; a dash where one repeat shows no spread."""
    return [
        DASH if comparison.spread is None else _many(count) for count in comparison.repeats_to_find.values()
    ]


def _cells(difference: Difference) -> list[Cell]:
    """Those below `_COLUMNS`."""
    places = decimals([difference.value_a, difference.value_b])
    verdict: str = difference.verdict
    if verdict == "no difference":
        verdict = "no difference shown"
        if excludes_one(difference.ratio_ci):
            verdict = "not significant after correction"
    if difference.missing_samples > MOST_MISSING:
        verdict += f" in one repeat: use --repeats {ENOUGH}"
    elif difference.missing_samples:
        what = METRICS[difference.metric].sample
        verdict = f"needs {plural(difference.missing_samples, f'more {what}')}"
    return [
        Cell(number(difference.value_a, places), difference.value_a),
        Cell(number(difference.value_b, places), difference.value_b),
        Cell(change_text(difference.ratio), difference.ratio),
        Cell(_ends(difference.ratio, difference.ratio_ci)),
        Cell(verdict),
        Cell(" / ".join(repeats_to_find(difference))),
    ]


def _gate(gated: Gated) -> list[Cell]:
    if gated.value is None:
        value, ends = DASH, DASH
    elif gated.relative:
        value, ends = change_text(gated.value), _ends(gated.value, gated.ci)
    else:
        places = 4 if "error" in gated.gate else decimals([gated.value])
        value = number(gated.value, places)
        ends = DASH if gated.ci is None else " to ".join(number(end, places) for end in gated.ci)
    engine = (
        gated.engine_b if gated.engine_a == gated.engine_b else f"{gated.engine_b} against {gated.engine_a}"
    )
    texts = (gated.gate, engine, load_number(gated.load), value, ends, gated.outcome, gated.reason)
    return [Cell(text) for text in texts]


def statistic_name(metric: str, statistic: str) -> str:
    """`TTFT p99, ms`; of a rate `output tok/s`."""
    term = METRICS[metric]
    return term.label if statistic == metric else f"{term.label} {statistic}, {term.unit}"


def _many(repeats: int | None) -> str:
    return f"over {MAX_REPEATS:,}" if repeats is None else str(repeats)


def _ends(ratio: float, ci: Ends | None) -> str:
    """Of the ratio, in its unit; one that excludes nothing is too wide."""
    if ci is None:
        return DASH
    return TOO_WIDE if says_nothing(ci) else " to ".join(change_text(end, of=ratio) for end in ci)
