"""What a tuning found, as tables."""

from __future__ import annotations

from statistics import fmean

from harness.report.tables.table import Cell, Column, Table
from harness.report.text.limits import limit_words
from harness.report.text.numbers import DASH, decimals, number, plural
from harness.report.text.tuning import objective_name, objective_unit, ratio, ratio_ends, written
from harness.schema.tune import ConfigurationFound, FinalistFound, TunePlan, TuneResults


def tuning_tables(tune: TuneResults) -> list[Table]:
    """The finalists against the default, then every configuration."""
    return [_finalists(tune), _configurations(tune)]


def _finalists(tune: TuneResults) -> Table:
    plan = tune.plan
    columns = [
        Column("configuration", numeric=False),
        Column(_head(plan)),
        Column("default"),
        Column("times as much"),
        Column("95 % interval"),
        Column("", numeric=False),
        *([Column("within the limits", numeric=False)] if plan.limits else []),
        Column("settings", numeric=False),
    ]
    settings = {found.label: written(found.settings) for found in tune.configurations}
    rows = [
        [
            Cell(found.label),
            _number(found.value),
            _number(found.default),
            Cell(ratio(found), found.ratio),
            Cell(ratio_ends(found) or DASH, ends=found.ci),
            Cell(found.verdict),
            *([Cell(_within(found))] if plan.limits else []),
            Cell(settings[found.label]),
        ]
        for found in tune.finalists
    ]
    repeats = max((found.repeats[0] for found in tune.finalists), default=0)
    notes = [
        f"Measured in turns with the default, {plural(repeats, 'repeat')} each with a fresh server; what "
        "chose the finalists does not count. Better or worse: at 5 % for all finalists together."
    ]
    if plan.limits:
        notes.append(f"Limits: {limit_words(plan.limits)}.")
    return Table("finalists", "Finalists against the default", columns, rows, notes)


def _configurations(tune: TuneResults) -> Table:
    plan, limits = tune.plan, list(tune.configurations[0].limits) if tune.configurations else []
    columns = [
        Column("configuration", numeric=False),
        Column("repeats"),
        Column(f"{_head(plan)}, mean"),
        *map(Column, limits),
        Column("", numeric=False),
        Column("settings", numeric=False),
    ]
    rows = []
    for found in tune.configurations:
        state = f"failed: {found.reason}" if found.state == "failed" else found.state
        if found.invalid:
            state += f"; {plural(found.invalid, 'cell')} invalid"
        measured = [_number(found.limits.get(limit)) for limit in limits]
        rows.append(
            [
                Cell(found.label),
                Cell(str(len(found.values)), len(found.values)),
                _number(_mean(found)),
                *measured,
                Cell(state),
                Cell(written(found.settings)),
            ]
        )
    notes = [
        f"{plural(len(tune.configurations) - 1, 'configuration')} of {plan.space.size - 1:,}, drawn at "
        f"random; about one in {plan.reduction} goes on at {_rungs(tune)} (asynchronous successive halving "
        "by Optuna)."
    ]
    return Table("configurations", "Configurations that were tried", columns, rows, notes)


def _head(plan: TunePlan) -> str:
    return ", ".join(filter(None, (objective_name(plan), objective_unit(plan))))


def _rungs(tune: TuneResults) -> str:
    rungs, at = [1], tune.plan.reduction
    while at <= tune.plan.rounds:
        rungs.append(at)
        at *= tune.plan.reduction
    return f"{', '.join(map(str, rungs))} {'repeat' if rungs == [1] else 'repeats'}"


def _mean(found: ConfigurationFound) -> float | None:
    known = [value for value in found.values if value is not None]
    return fmean(known) if known else None


def _number(value: float | None) -> Cell:
    return Cell(DASH) if value is None else Cell(number(value, decimals([value])), value)


def _within(found: FinalistFound) -> str:
    return DASH if found.within is None else "yes" if found.within else "no"
