"""The findings of a tuning as tables."""

from __future__ import annotations

from statistics import fmean

from harness.report.tables.table import Cell, Column, Table
from harness.report.text.limits import limit_words
from harness.report.text.numbers import DASH, plural
from harness.report.text.tuning import objective_name, objective_unit, ratio, ratio_ends, written
from harness.schema.tune import ConfigurationFound, TunePlan, TuneResults


def tuning_tables(tune: TuneResults) -> list[Table]:
    """The finalists against the default, then every configuration."""
    return [_finalists(tune), _configurations(tune)]


def _finalists(tune: TuneResults) -> Table:
    plan, finalists = tune.plan, tune.finalists
    settings = {each.label: written(each.settings) for each in tune.configurations}
    columns = [
        Column.text("configuration", [each.label for each in finalists]),
        Column(_head(plan), [Cell.number(each.value) for each in finalists]),
        Column("default", [Cell.number(each.default) for each in finalists]),
        Column("times as much", [Cell(ratio(each), each.ratio) for each in finalists]),
        Column("95 % interval", [Cell(ratio_ends(each) or DASH, ends=each.ci) for each in finalists]),
        Column.text("", [each.verdict for each in finalists]),
    ]
    repeats = max((each.repeats[0] for each in finalists), default=0)
    notes = [
        f"Measured in turns with the default, {plural(repeats, 'repeat')} each with a fresh server; what "
        "chose the finalists does not count. Better or worse: at 5 % for all finalists together."
    ]
    if plan.limits:
        words = {None: DASH, True: "yes", False: "no"}
        columns.append(Column.text("within the limits", [words[each.within] for each in finalists]))
        notes.append(f"Limits: {limit_words(plan.limits)}.")
    columns.append(Column.text("settings", [settings[each.label] for each in finalists]))
    return Table("finalists", "Finalists against the default", columns, notes)


def _configurations(tune: TuneResults) -> Table:
    plan, tried = tune.plan, tune.configurations
    limits = list(tried[0].limits) if tried else []
    columns = [
        Column.text("configuration", [each.label for each in tried]),
        Column.count("repeats", [len(each.values) for each in tried]),
        Column(f"{_head(plan)}, mean", [Cell.number(_mean(each)) for each in tried]),
        *(Column(limit, [Cell.number(each.limits.get(limit)) for each in tried]) for limit in limits),
        Column.text("", map(_state, tried)),
        Column.text("settings", [written(each.settings) for each in tried]),
    ]
    notes = [
        f"{plural(len(tried) - 1, 'configuration')} of {plan.space.size - 1:,}, drawn at "
        f"random; about one in {plan.reduction} goes on at {_rungs(plan)} (asynchronous successive halving "
        "by Optuna)."
    ]
    return Table("configurations", "Configurations that were tried", columns, notes)


def _head(plan: TunePlan) -> str:
    return ", ".join(filter(None, (objective_name(plan), objective_unit(plan))))


def _rungs(plan: TunePlan) -> str:
    rungs, at = [1], plan.reduction
    while at <= plan.rounds:
        rungs.append(at)
        at *= plan.reduction
    return f"{', '.join(map(str, rungs))} {'repeat' if rungs == [1] else 'repeats'}"


def _mean(tried: ConfigurationFound) -> float | None:
    values = [value for value in tried.values if value is not None]
    return fmean(values) if values else None


def _state(tried: ConfigurationFound) -> str:
    state = f"failed: {tried.reason}" if tried.state == "failed" else tried.state
    return f"{state}; {plural(tried.invalid, 'cell')} invalid" if tried.invalid else state
