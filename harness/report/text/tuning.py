"""Values of a tuning as text, and its answer."""

from __future__ import annotations

from collections.abc import Iterator

from harness.report.text.limits import limit_words
from harness.report.text.numbers import DASH, decimals, few, number
from harness.report.wording import Sentence, as_sentence, reason_text, sentence
from harness.schema.limits import names_of
from harness.schema.metrics import METRICS
from harness.schema.tune import FinalistFound, Settings, TunePlan, TuneResults


def objective_name(plan: TunePlan) -> str:
    """`TPOT p50`, or `output tok/s`."""
    metric, statistic = names_of(plan.objective)
    label = METRICS[metric].label
    return f"{label} {statistic}" if METRICS[metric].is_latency else label


def objective_unit(plan: TunePlan) -> str:
    """`ms`; empty for a rate, whose name has it."""
    return "ms" if METRICS[names_of(plan.objective)[0]].is_latency else ""


def written(settings: Settings) -> str:
    """Write settings as on a command line: `--max-num-seqs 64 --no-async-scheduling`, variables before."""
    return " ".join(_words(settings)) or "none"


def _words(settings: Settings) -> Iterator[str]:
    for name, value in settings.items():
        if not name.startswith("--"):
            yield f"{name}={value}"
    for name, value in settings.items():
        if name.startswith("--"):
            if isinstance(value, bool):
                yield name if value else f"--no-{name.removeprefix('--')}"
            else:
                yield f"{name} {value}"


def ratio(found: FinalistFound) -> str:
    """Ratio of the finalist's value to the default's."""
    return DASH if found.ratio is None else f"{found.ratio:.3f}"


def ratio_ends(found: FinalistFound) -> str:
    """95 % interval of that ratio; empty where there is none."""
    return "" if found.ci is None else f"{found.ci[0]:.3f} to {found.ci[1]:.3f}"


def tuning_answer(tune: TuneResults) -> list[Sentence]:
    """Say which settings are better than the default, and by how much."""
    objective, default = objective_name(tune.plan), tune.configurations[0]
    if tune.best is not None:
        best = next(finalist for finalist in tune.finalists if finalist.label == tune.best)
        settings = next(tried.settings for tried in tune.configurations if tried.label == tune.best)
        values = [value for value in (best.value, best.default) if value is not None]
        unit = objective_unit(tune.plan)
        value, before = (f"{number(each, decimals(values))} {unit}".strip() for each in values)
        times = f"{ratio(best)} times as much, {ratio_ends(best)}"
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
