"""Limits that hold, frontiers and prices, as tables."""

from __future__ import annotations

from harness.metrics.digits import per_cent
from harness.metrics.frontier import Served
from harness.metrics.intervals import Measurement
from harness.report.decision import Box, Decision
from harness.report.tables.table import Cell, Column, Table, interval_cell
from harness.report.text.limits import term_words
from harness.report.text.load_words import head_of, load_number
from harness.report.text.numbers import DASH, decimals, number
from harness.schema.limits import ERROR_RATE, GateTerm, Slo
from harness.schema.metrics import METRICS

_SIGNS: dict[Box, str] = {"pass": "✓", "fail": "✗", "undecided": "?", "unknown": ""}
_KEY = (
    "✓: the whole 95 % interval is within the limit; ✗: beyond it; ?: the limit is in the interval, or there "
    "is no interval, as of one repeat or of too few requests for the percentile."
)


def within_table(decision: Decision) -> Table | None:
    """Every limit at every load of every engine, pass or fail; None without limits."""
    if not decision.within:
        return None
    terms, points = decision.terms, decision.within
    columns = [Column("engine", numeric=False), Column(head_of(point.load for point in points))]
    columns += [Column(term_words(term)) for term in terms]
    if decision.slo is not None:
        columns += [Column("requests within"), Column("goodput req/s")]
    rows = []
    for point in points:
        row = [Cell(point.label, invalid=not point.valid), Cell(load_number(point.load), point.load.value)]
        row += [_box(*three) for three in zip(terms, point.values, point.boxes, strict=True)]
        if decision.slo is not None:
            row += [_share(point.attained), known_cell(point.goodput)]
        rows.append(row)
    notes = [_KEY] if terms else []
    if any(value is None for point in points for value in point.values):
        notes.append(f"{DASH}: there is none, or it is withheld: p99 needs 100 samples, p90 10.")
    if decision.slo is not None:
        limits = limits_text(decision.slo)
        notes.append(f"Requests within: the share that meets {limits}, of all that were sent.")
    return Table("within", "Within the limits", columns, rows, notes)


def limits_text(slo: Slo) -> str:
    """`TTFT ≤ 200 ms, TPOT ≤ 50 ms`."""
    limits = slo.model_dump(exclude_none=True).items()
    return ", ".join(f"{METRICS[name].label} ≤ {limit:g} ms" for name, limit in limits)


def frontier_table(decision: Decision) -> Table | None:
    """Tokens a second of each load for all users and for one, with their cost; None: nothing was served."""
    if not decision.served:
        return None
    columns = [
        Column("engine", numeric=False),
        Column(head_of(point.load for point in decision.served)),
        Column(f"tok/s per {decision.unit}"),
        Column("tok/s per user"),
        *([Column(_price_head(decision))] if decision.hourly else []),
        *([Column(METRICS["joules_per_output_token"].label)] if decision.joules else []),
        Column("", numeric=False),
    ]
    rows = []
    for point in decision.served:
        spent = [known_cell(decision.cost(point))] if decision.hourly else []
        spent += [known_cell(decision.joules.get((point.label, point.load)))] if decision.joules else []
        remark = DASH if not point.valid else "dominated" if point.dominated else "frontier"
        rates = [known_cell(point.total), known_cell(point.user)]
        rows.append([*_identity(point), *rates, *spent, Cell(remark)])
    notes = [
        "Output tokens. Per user: 1 / TPOT at the median. Dominated: another load of the engine gives more "
        "of one and no less of the other."
    ]
    return Table("frontier", "Tokens for all and for each", columns, rows, notes)


def cost_table(decision: Decision) -> Table | None:
    """Price of a million output tokens within the limits, a row an engine; None without prices or limits."""
    if decision.hourly is None or not decision.terms:
        return None
    labels = list(dict.fromkeys(point.label for point in decision.within))
    columns = [
        Column("engine", numeric=False),
        Column(head_of(point.load for point in decision.within)),
        Column(_price_head(decision)),
        Column(f"tok/s per {decision.unit}"),
        Column("tok/s per user"),
    ]
    rows = []
    for label in labels:
        point = decision.at_limits(label)
        if point is None:
            rows.append([Cell(label), Cell("no load within the limits"), *[Cell(DASH)] * 3])
        else:
            cost = known_cell(decision.cost(point))
            rows.append([*_identity(point), cost, known_cell(point.total), known_cell(point.user)])
    hour = decision.hourly
    notes = [
        f"An hour of {hour.of} costs {hour.amount:g} {hour.currency}. At the load that gives the most tokens "
        f"of those whose values are within {', '.join(term.text for term in decision.terms)}."
    ]
    return Table("cost", "What tokens cost within the limits", columns, rows, notes)


def decision_tables(decision: Decision) -> list[Table]:
    """The tables of a decision that there are, the most decided first."""
    tables = (cost_table(decision), within_table(decision), frontier_table(decision))
    return [table for table in tables if table is not None]


def known_cell(measurement: Measurement | None) -> Cell:
    """A value with its interval."""
    if measurement is None:
        return Cell(DASH)
    return interval_cell(measurement.value, measurement.ci, decimals([measurement.value]))


def _identity(point: Served) -> list[Cell]:
    return [Cell(point.label, invalid=not point.valid), Cell(load_number(point.load), point.load.value)]


def _box(term: GateTerm, value: Measurement | None, box: Box) -> Cell:
    if value is None:
        return Cell(DASH)
    is_share = term.metric == ERROR_RATE
    text = per_cent(value.value, 1) if is_share else number(value.value, decimals([value.value]))
    return Cell(f"{text} {_SIGNS[box]}", value.value, ends=value.ci)


def _share(measurement: Measurement | None) -> Cell:
    if measurement is None:
        return Cell(DASH)
    interval = (
        "" if measurement.ci is None else f"{100 * measurement.ci[0]:.1f}–{100 * measurement.ci[1]:.1f}"
    )
    return Cell(per_cent(measurement.value, 1), measurement.value, interval, ends=measurement.ci)


def _price_head(decision: Decision) -> str:
    return f"{decision.hourly.currency if decision.hourly else ''} per million output tokens"
