"""Engines or runs compared: ratios to a baseline, two runs side by side and their gates, the noise of an A/A
run, and how many repeats a difference needs."""

from __future__ import annotations

from collections.abc import Sequence

from harness.metrics.contrast import MAX_REPEATS, POWER, SHARE
from harness.metrics.digits import per_cent
from harness.metrics.estimates import Key
from harness.metrics.intervals import LEVEL, Ends
from harness.metrics.rankings import REAL as SIGNIFICANT
from harness.metrics.rankings import better, excludes_one, valid_labels
from harness.report.grouping import grouped
from harness.report.tables.latency import SHOWN
from harness.report.tables.table import TOO_WIDE, Cell, Column, Table, alike_in_rows, says_nothing
from harness.report.text.load_words import head_of, load_number, where
from harness.report.text.numbers import DASH, change_text, decimals, number, plural, with_ends
from harness.report.text.provenance import assumed, assumed_of_rates
from harness.report.wording import not_significant, reason_text
from harness.schema.compare_results import EFFECTS, CompareResults, Difference, Gated
from harness.schema.load import Batch
from harness.schema.metrics import METRICS, latencies, rates, statistic_name
from harness.schema.results import Comparison, OnlineSummary
from harness.schema.run_info import LaunchRecord

#: The meaning of the mark in a table of ratios.
BETTER = "Better than the baseline by more than chance, at 5 % for all comparisons of the run together."
#: More missing requests than this are not counted: requests of one repeat resemble each other, and more of
#: them hardly help. So many repeats do.
MOST_MISSING, ENOUGH = 1000, 5
#: The statistics of a run's plan for more repeats.
PLANNED: tuple[Key, ...] = (
    *((metric, statistic) for metric in latencies("headline") for statistic in ("p50", "p99")),
    *((rate, rate) for rate in rates("headline")),
)
_EFFECTS = " / ".join(EFFECTS)
_NO_DIFFERENCE = "no difference shown"


# --- Ratios to a baseline -------------------------------------------------------------------------------


def ratios(
    comparisons: Sequence[Comparison],
    metric: str,
    baseline: str,
    labels: Sequence[str],
    pooled: Sequence[OnlineSummary],
) -> Table:
    """`engine / baseline` for each load and percentile; marked where the engine is really better.

    An invalid cell is not compared.
    """
    valid = valid_labels(pooled)
    compared = {
        (comparison.load, comparison.statistic, pair): comparison
        for comparison in comparisons
        if comparison.metric == metric and {comparison.a, comparison.b} <= valid[comparison.load]
        for pair in ((comparison.a, comparison.b), (comparison.b, comparison.a))
        if pair[1] == baseline
    }
    keys = [(load, f"p{q}") for load in sorted({summary.load for summary in pooled}) for q in SHOWN]
    title = f"{METRICS[metric].label}, ratio to {baseline}"
    others = [label for label in labels if label != baseline]
    columns = [Column.text("engine", others)]
    for load, statistic in keys:
        cells = [ratio_cell(compared.get((load, statistic, (label, baseline))), label) for label in others]
        columns.append(Column(statistic, cells, str(load), measure=title))
    return Table(f"{metric}-ratios", title, columns, best=BETTER)


def ratio_cell(comparison: Comparison | None, label: str) -> Cell:
    """Make the cell of the ratio of an engine to the other one of a comparison."""
    if comparison is None:
        return Cell(DASH, remark="not compared: not measured, or invalid")
    if comparison.ci is None:
        return Cell(DASH, remark="withheld: the samples are too small")
    ratio, (low, high) = comparison.ratio, comparison.ci
    if comparison.b == label:
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
    size, *ends = with_ends(ratio, (low, high))
    real = comparison.verdict in SIGNIFICANT
    chance = not_significant(comparison.comparisons) if excludes_one(comparison.ci) else _NO_DIFFERENCE
    is_better = better(comparison) == label
    verdict = ("better" if is_better else "worse") if real else ""
    return Cell(
        f"{size if ratio < 10 else f'{ratio:.1f}'}×",
        ratio,
        TOO_WIDE if says_nothing(comparison.ci) else "–".join(ends),
        verdict,
        "a real difference" if real else chance,
        worse=real and not is_better,
        best=real and is_better,
        ends=(low, high),
    )


# --- Two runs -------------------------------------------------------------------------------------------


def difference_tables(results: CompareResults) -> list[Table]:
    """One table an engine and load: every statistic of A and B, the change, and what is known of it."""
    by_place = grouped(results.differences, lambda each: (each.engine_a, each.engine_b, each.load))
    plans = _spread_is_known(results.differences)
    tables = []
    for (a, b, load), rows in by_place.items():
        columns = [
            Column.text("statistic", [statistic_name(row.metric, row.statistic) for row in rows]),
            *alike_in_rows("AB", [(row.value_a, row.value_b) for row in rows]),
            Column("change", [Cell(change_text(row.ratio), row.ratio) for row in rows]),
            Column.text("95 % interval", [_ends(row.ratio, row.ratio_ci) for row in rows]),
            Column.text("verdict on B", map(_verdict_on, rows)),
        ]
        if plans:
            cells = [Cell(" / ".join(repeats_to_find(row).values())) for row in rows]
            columns.append(Column(f"repeats to find {_EFFECTS}", cells))
        engines = a if a == b else f"{b} (B) against {a} (A)"
        unit = "" if isinstance(load, Batch) else "; latencies in ms"
        tables.append(Table("difference", f"{engines}, {load}{unit}", columns))
    return tables


def _verdict_on(difference: Difference) -> str:
    verdict: str = difference.verdict
    if verdict == "no difference":
        excludes = excludes_one(difference.ratio_ci)
        verdict = "not significant after correction" if excludes else _NO_DIFFERENCE
    if difference.missing_samples > MOST_MISSING:
        return f"{verdict} in one repeat: use --repeats {ENOUGH}"
    if difference.missing_samples:
        return f"needs {plural(difference.missing_samples, f'more {METRICS[difference.metric].sample}')}"
    return verdict


def _spread_is_known(rows: Sequence[Comparison] | Sequence[Difference]) -> bool:
    """Repeats of some statistic show how much they differ, and so how many find a difference."""
    return any(row.spread is not None for row in rows)


def gates_table(results: CompareResults) -> Table:
    """One row a gate, engine and load."""
    gates = results.gates
    values = list(map(_gated_values, gates))
    sides = [(gate.engine_a, gate.engine_b) for gate in gates]
    loads = [gate.load for gate in gates]
    columns = [
        Column.text("gate", [gate.gate for gate in gates]),
        Column.text("engine", [b if a == b else f"{b} against {a}" for a, b in sides]),
        Column(head_of(loads), [Cell(load_number(load)) for load in loads]),
        Column("found", [Cell(value) for value, _ in values]),
        Column.text("95 % interval", [ends for _, ends in values]),
        Column.text("outcome", [gate.outcome for gate in gates]),
        Column.text("why", [gate.reason for gate in gates]),
    ]
    return Table("gates", "Gates", columns)


def _gated_values(gated: Gated) -> tuple[str, str]:
    """The value that was held to the limit, and its interval."""
    if gated.value is None:
        return DASH, DASH
    if gated.relative:
        return change_text(gated.value), _ends(gated.value, gated.ci)
    places = 4 if "error" in gated.gate else decimals([gated.value])
    ends = DASH if gated.ci is None else " to ".join(number(end, places) for end in gated.ci)
    return number(gated.value, places), ends


def disturbances(results: CompareResults) -> list[str]:
    """A sentence for each engine and load that was measured on a disturbed machine."""
    one_run = results.a == results.b
    return [
        f"The machine was disturbed while {cell.label}{'' if one_run else f' of {cell.run}'} was measured "
        f"{where(cell.load)}: {reason_text(cell.facts)}."
        for cell in results.disturbed
    ]


def caveats(results: CompareResults) -> list[str]:
    """Sentences on how to read the tables."""
    pairs = len({(difference.engine_a, difference.engine_b) for difference in results.differences}) or 1
    batches = [difference for difference in results.differences if isinstance(difference.load, Batch)]
    together = (
        f"{plural(results.comparisons, 'comparison')}. The verdicts on "
        f"{'each engine' if pairs > 1 else 'the engine'} hold together: a chance of {per_cent(LEVEL)} at "
        "most that any of them finds a difference that is none (Holm)."
    )
    if not batches:
        together += (
            f" TTFT and TPOT p50, with requests in flight also the output rate, share {per_cent(SHARE)} of "
            f"it. Each interval holds alone: where nothing differs, it excludes 0 with a chance of "
            f"{per_cent(LEVEL)}."
        )
    elif any(difference.metric not in rates("headline") for difference in batches):
        together += f" The output rate has {per_cent(SHARE)} of it."
    sentences = [together]
    if batches:
        sentences.append(_pairing(batches, one_run=results.a == results.b))
    if _spread_is_known(results.differences):
        sentences.append(
            f"Repeats to find a difference: of each run, for a verdict with {per_cent(POWER)} chance."
        )
    if any(min(difference.repeats_a, difference.repeats_b) == 1 for difference in results.differences):
        spread = assumed_of_rates if batches else assumed
        sentences.append(f"One repeat does not show how repeats differ: a spread of {spread} is assumed.")
    return sentences


def _pairing(batches: Sequence[Difference], *, one_run: bool) -> str:
    """The way in which repeats of batches are compared, and what that rests on."""
    if not all(difference.paired for difference in batches):
        return "The repeats of A and B have other prompts, which is part of how repeats differ."
    paired = "Each repeat has the same prompts in A and B, so they are compared repeat by repeat."
    if one_run:
        return paired
    return f"{paired} Whatever else differs between the runs, such as other programs, is in the change."


# --- Noise, and repeats that find a difference ----------------------------------------------------------


def noise_tables(comparisons: Sequence[Comparison], launches: Sequence[LaunchRecord]) -> list[Table]:
    """The noise floor of an A/A run: one table an engine, a row a load and statistic."""
    plans = _spread_is_known(comparisons)
    sides = {launch.label: launch.side_of for launch in launches}
    of_two_sides = [pair for pair in comparisons if sides.get(pair.a) == sides.get(pair.b, "")]
    tables = []
    for engine, rows in grouped(of_two_sides, lambda pair: sides[pair.a]).items():
        repeats = list(map(repeats_to_find, rows))
        loads = [row.load for row in rows]
        columns = [
            Column(head_of(loads), list(map(Cell, map(load_number, loads)))),
            Column.text("statistic", map(_name_with_unit, rows)),
            *alike_in_rows("AB", [(row.value_a, row.value_b) for row in rows]),
            Column("noise", list(map(_noise_cell, rows))),
            Column.text("A against B", [row.verdict for row in rows]),
        ]
        if plans:
            columns += [
                Column(f"repeats to find {effect}", [Cell(each[effect]) for each in repeats])
                for effect in EFFECTS
            ]
        title = f"{engine} against itself: {_verdict_on_noise(rows)}"
        tables.append(Table("noise", title, columns))
    return tables


def _verdict_on_noise(comparisons: Sequence[Comparison]) -> str:
    """The verdict of one A/A run."""
    wrong = sum(comparison.verdict in SIGNIFICANT for comparison in comparisons)
    decided = sum(comparison.verdict != "not enough data" for comparison in comparisons)
    differences = f"a difference in {wrong}" if wrong else "no difference"
    return f"{differences} of {plural(decided, 'comparison')}, at {per_cent(LEVEL)} for all together"


def _noise_cell(comparison: Comparison) -> Cell:
    """Half the width of the interval of the ratio."""
    if comparison.ci is None:
        return Cell(DASH)
    half = (comparison.ci[1] / comparison.ci[0]) ** 0.5 - 1
    return Cell(f"±{per_cent(half, 1)}", half)


def planning_tables(comparisons: Sequence[Comparison]) -> list[Table]:
    """Repeats that a difference between two engines of a run needs; nothing where none has several."""
    repeated = [comparison for comparison in comparisons if comparison.spread is not None]
    if not repeated:
        return []
    by_pair = grouped(repeated, lambda each: (each.a, each.b, each.load))
    by_key = {(each.a, each.b, each.load, each.metric, each.statistic): each for each in repeated}
    loads = [load for *_, load in by_pair]
    columns = [
        Column.text("engines", [f"{a} and {b}" for a, b, _ in by_pair]),
        Column.text(head_of(loads), map(load_number, loads)),
    ]
    for key in PLANNED:
        rows = [by_key.get((*pair, *key)) for pair in by_pair]
        texts = [" / ".join(repeats_to_find(row).values()) if row else DASH for row in rows]
        if any(rows):
            columns.append(Column(statistic_name(*key), list(map(Cell, texts))))
    title = f"Repeats of each engine that find a difference of {_EFFECTS}"
    note = f"With a chance of {per_cent(POWER)}, for all comparisons of the run together."
    return [Table("planning", title, columns, [note])]


def repeats_to_find(comparison: Comparison | Difference) -> dict[str, str]:
    """Number of repeats that finds each of `EFFECTS`; a dash where one repeat shows no spread."""
    if comparison.spread is None:
        return dict.fromkeys(EFFECTS, DASH)
    return {
        effect: f"over {MAX_REPEATS:,}" if repeats is None else str(repeats)
        for effect, repeats in comparison.repeats_to_find.items()
    }


def _name_with_unit(row: Comparison) -> str:
    """`TTFT p99, ms`; of a rate `output tok/s`."""
    unit = f", {METRICS[row.metric].unit}" if METRICS[row.metric].is_latency else ""
    return f"{statistic_name(row.metric, row.statistic)}{unit}"


def _ends(ratio: float, ci: Ends | None) -> str:
    """The interval of a ratio, in its unit; one that excludes nothing is too wide."""
    if ci is None:
        return DASH
    return TOO_WIDE if says_nothing(ci) else " to ".join(change_text(end, of=ratio) for end in ci)
