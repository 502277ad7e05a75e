"""Limits that hold, frontiers and prices, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.compare.compare_runs import outcome
from harness.metrics.attainment import Served
from harness.metrics.digits import per_cent
from harness.metrics.intervals import Measurement
from harness.report.decision import Decision, Within
from harness.report.tables.table import Cell, Column, Table
from harness.report.text.load_words import head_of, load_number
from harness.report.text.numbers import DASH, decimals, number
from harness.report.wording import term_words
from harness.schema.compare_results import Outcome
from harness.schema.limits import ERROR_RATE, GateTerm, Slo
from harness.schema.machines import Hourly
from harness.schema.metrics import METRICS

_SIGNS: dict[Outcome, str] = {"pass": "✓", "regression": "✗", "inconclusive": "?"}
_KEY = (
    "✓: the whole 95 % interval is within the limit; ✗: beyond it; ?: the limit is in the interval, or there "
    "is no interval, as of one repeat or of too few requests for the percentile."
)


def within_table(decision: Decision) -> Table | None:
    """Every limit at every load of every engine, pass or fail; None without limits."""
    points, slo = decision.within, decision.slo
    if not points:
        return None
    columns = _places(points)
    for at, term in enumerate(decision.terms):
        columns.append(Column(term_words(term), [_box(term, point.values[at]) for point in points]))
    notes = [_KEY] if decision.terms else []
    if any(value is None for point in points for value in point.values):
        notes.append(f"{DASH}: there is none, or it is withheld: p99 needs 100 samples, p90 10.")
    if slo is not None:
        columns.append(Column("requests within", [_share(point.attained) for point in points]))
        columns.append(_known("goodput req/s", [point.goodput for point in points]))
        notes.append(f"Requests within: the share that meets {limits_text(slo)}, of all that were sent.")
    return Table("within", "Within the limits", columns, notes)


def limits_text(slo: Slo) -> str:
    """`TTFT ≤ 200 ms, TPOT ≤ 50 ms`."""
    limits = slo.model_dump(exclude_none=True).items()
    return ", ".join(f"{METRICS[name].label} ≤ {limit:g} ms" for name, limit in limits)


def frontier_table(decision: Decision) -> Table | None:
    """Tokens a second of each load for all users and for one, with their cost; None: nothing was served."""
    points = decision.served
    if not points:
        return None
    columns = [*_places(points), *_rates(decision, points)]
    if decision.hourly:
        columns.append(_price(decision.hourly, decision, points))
    if decision.joules:
        joules = [decision.joules.get((point.label, point.load)) for point in points]
        columns.append(_known(METRICS["joules_per_output_token"].label, joules))
    where = {True: "dominated", False: "frontier"}
    columns.append(Column.text("", [where[p.dominated] if p.valid else DASH for p in points]))
    notes = [
        "Output tokens. Per user: 1 / TPOT at the median. Dominated: another load of the engine gives more "
        "of one and no less of the other."
    ]
    return Table("frontier", f"Tok/s per {decision.unit} and per user", columns, notes)


def cost_table(decision: Decision) -> Table | None:
    """Price of a million output tokens within the limits, a row an engine; None without prices or limits."""
    hour = decision.hourly
    if hour is None or not decision.terms:
        return None
    labels = list(dict.fromkeys(point.label for point in decision.within))
    points = [decision.at_limits(label) for label in labels]
    loads = [
        Cell(load_number(p.load), p.load.value) if p else Cell("no load within the limits") for p in points
    ]
    columns = [
        Column.text("engine", labels),
        Column(head_of(point.load for point in decision.within), loads),
        _price(hour, decision, points),
        *_rates(decision, points),
    ]
    notes = [
        f"An hour of {hour.of} costs {hour.amount:g} {hour.currency}. At the load that gives the most tokens "
        f"of those whose values are within {', '.join(term.text for term in decision.terms)}."
    ]
    return Table("cost", "What tokens cost within the limits", columns, notes)


def _places(points: Sequence[Within] | Sequence[Served]) -> list[Column]:
    """Return the columns of the engine, marked where it is invalid, and of the load."""
    engines = Column.engine(points).marked("invalid", (not point.valid for point in points))
    return [engines, Column.load(points)]


def _rates(decision: Decision, points: Sequence[Served | None]) -> list[Column]:
    return [
        _known(f"tok/s per {decision.unit}", [point.total if point else None for point in points]),
        _known("tok/s per user", [point.user if point else None for point in points]),
    ]


def _price(hour: Hourly, decision: Decision, points: Sequence[Served | None]) -> Column:
    head = f"{hour.currency} per million output tokens"
    return _known(head, [decision.cost(point) if point else None for point in points])


def decision_tables(decision: Decision) -> list[Table]:
    """The tables of a decision that there are, the most decided first."""
    tables = (cost_table(decision), within_table(decision), frontier_table(decision))
    return [table for table in tables if table is not None]


def _known(title: str, measurements: Iterable[Measurement | None]) -> Column:
    """Return a column of values with their intervals."""
    return Column(title, [Cell.number(m.value, ends=m.ci) if m else Cell(DASH) for m in measurements])


def _box(term: GateTerm, value: Measurement | None) -> Cell:
    if value is None:
        return Cell(DASH)
    is_share = term.metric == ERROR_RATE
    text = per_cent(value.value, 1) if is_share else number(value.value, decimals([value.value]))
    sign = _SIGNS[outcome(term, term.limit, value.ci)]
    return Cell(f"{text} {sign}", value.value, ends=value.ci)


def _share(measurement: Measurement | None) -> Cell:
    if measurement is None:
        return Cell(DASH)
    interval = "–".join(f"{100 * end:.1f}" for end in measurement.ci or ())
    return Cell(per_cent(measurement.value, 1), measurement.value, interval, ends=measurement.ci)
