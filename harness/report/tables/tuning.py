"""The findings of a tuning as tables, and its answer."""

from __future__ import annotations

from statistics import fmean

from harness.report.tables.table import Cell, Column, Table
from harness.report.text.numbers import DASH, decimals, few, number, plural
from harness.report.wording import Sentence, as_sentence, limit_words, reason_text, sentence
from harness.schema.limits import names_of
from harness.schema.metrics import METRICS, statistic_name
from harness.schema.tune import ConfigurationFound, FinalistFound, Settings, TunePlan, TuneResults


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
        Column.number("times as much", [each.ratio for each in finalists], 3),
        Column("95 % interval", [Cell(_ratio_ends(each), ends=each.ci) for each in finalists]),
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
    rungs = [at for n in range(plan.rounds) if (at := plan.reduction**n) <= plan.rounds]
    return f"{', '.join(map(str, rungs))} {'repeat' if rungs == [1] else 'repeats'}"


def _mean(tried: ConfigurationFound) -> float | None:
    values = [value for value in tried.values if value is not None]
    return fmean(values) if values else None


def _state(tried: ConfigurationFound) -> str:
    state = f"failed: {tried.reason}" if tried.state == "failed" else tried.state
    return f"{state}; {plural(tried.invalid, 'cell')} invalid" if tried.invalid else state


# --- Values as text, and the answer ----------------------------------------------------------------------


def objective_name(plan: TunePlan) -> str:
    """`TPOT p50`, or `output tok/s`."""
    return statistic_name(*names_of(plan.objective))


def objective_unit(plan: TunePlan) -> str:
    """`ms`; empty for a rate, whose name has it."""
    return "ms" if METRICS[names_of(plan.objective)[0]].is_latency else ""


def written(settings: Settings) -> str:
    """Write settings as on a command line: `--max-num-seqs 64 --no-async-scheduling`, variables before."""
    variables_first = sorted(settings, key=lambda name: name.startswith("--"))
    return " ".join(_word(name, settings[name]) for name in variables_first) or "none"


def _word(name: str, value: object) -> str:
    if not name.startswith("--"):
        return f"{name}={value}"
    if isinstance(value, bool):
        return name if value else f"--no-{name.removeprefix('--')}"
    return f"{name} {value}"


def _ratio_ends(found: FinalistFound) -> str:
    """95 % interval of the ratio to the default's value; a dash where there is none."""
    return DASH if found.ci is None else f"{found.ci[0]:.3f} to {found.ci[1]:.3f}"


def tuning_answer(tune: TuneResults) -> list[Sentence]:
    """Say which settings are better than the default, and by how much."""
    objective, default = objective_name(tune.plan), tune.configurations[0]
    if tune.best is not None:
        best = next(finalist for finalist in tune.finalists if finalist.label == tune.best)
        settings = next(tried.settings for tried in tune.configurations if tried.label == tune.best)
        values = [value for value in (best.value, best.default) if value is not None]
        unit = objective_unit(tune.plan)
        value, before = (f"{number(each, decimals(values))} {unit}".strip() for each in values)
        times = f"{number(best.ratio, 3)} times as much, {_ratio_ends(best)}"
        names = {"label": best.label, "objective": objective, "settings": written(settings)}
        return [sentence("tuned", **names, value=value, before=before, times=times)]
    if tune.default_invalid is not None:
        return [sentence("default_invalid", label=default.label, why=reason_text([tune.default_invalid]))]
    if all(finalist.value is None for finalist in tune.finalists):
        why = f" {as_sentence(default.reason)}" if default.reason else ""
        return [sentence("not_tuned", label=default.label, why=why)]
    beyond = [
        finalist.label
        for finalist in tune.finalists
        if finalist.verdict == "better" and finalist.within is False
    ]
    but = sentence("but", labels=few(beyond), limits=limit_words(tune.plan.limits or "")) if beyond else ""
    return [sentence("none_better", label=default.label, objective=objective, but=but)]
