"""What a tuning found, in words."""

from __future__ import annotations

from collections.abc import Iterator

from harness.report.text.limits import limit_words
from harness.report.text.numbers import DASH, decimals, number
from harness.schema.limits import names_of
from harness.schema.metrics import METRICS
from harness.schema.space import Settings
from harness.schema.tune import FinalistFound, TunePlan, TuneResults


def objective_name(plan: TunePlan) -> str:
    """`TPOT p50`, or `output tok/s`."""
    metric, statistic = names_of(plan.objective)
    label = METRICS[metric].label
    return f"{label} {statistic}" if METRICS[metric].is_latency else label


def objective_unit(plan: TunePlan) -> str:
    """`ms`; empty for a rate, whose name has it."""
    return "ms" if METRICS[names_of(plan.objective)[0]].is_latency else ""


def written(settings: Settings) -> str:
    """As a command line has them: `--max-num-seqs 64 --no-async-scheduling`, variables before."""
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
    """Of the finalist's value to the default's."""
    return DASH if found.ratio is None else f"{found.ratio:.3f}"


def ratio_ends(found: FinalistFound) -> str:
    """Its 95 % interval; empty where there is none."""
    return "" if found.ci is None else f"{found.ci[0]:.3f} to {found.ci[1]:.3f}"


def tuning_verdict(tune: TuneResults) -> list[str]:
    """Which settings are better than the default, and by how much."""
    what = objective_name(tune.plan)
    settings = {found.label: found.settings for found in tune.configurations}
    default = tune.configurations[0].label
    if tune.best is not None:
        best = next(found for found in tune.finalists if found.label == tune.best)
        values = [value for value in (best.value, best.default) if value is not None]
        unit = objective_unit(tune.plan)
        value, before = (f"{number(each, decimals(values))} {unit}".strip() for each in values)
        return [
            f"{best.label} is better than the default: {what} {value} instead of {before}, {ratio(best)} "
            f"times as much (95 % interval {ratio_ends(best)}).",
            f"Its settings: {written(settings[best.label])}.",
        ]
    if not tune.finalists:
        return [f"No configuration but the default of {default} could be measured.", "The table says why."]
    if tune.default_invalid:
        return [
            f"No configuration is called better than {default}: cells of it are invalid.",
            f"{default}, {tune.default_invalid}.",
        ]
    if all(found.value is None for found in tune.finalists):
        why = tune.configurations[0].reason
        reason = f"The default could not be measured again: {why}." if why else "The table says why."
        return [f"No configuration was compared with the default of {default}.", reason]
    said = [f"No configuration is shown to be better than {default} by {what}."]
    beyond = [f.label for f in tune.finalists if f.verdict == "better" and f.within is False]
    if beyond:
        said.append(f"{', '.join(beyond)} would be, but not within {limit_words(tune.plan.limits or '')}.")
    return said
