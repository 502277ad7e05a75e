"""Settings and plan of a tuning, from the command's options and a file of the space."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from harness import paths
from harness.engines.placement import resolve_placement
from harness.engines.registry import LOCAL, get_engine, get_engine_variant
from harness.errors import UsageError
from harness.runs.limits import check_limits, enough_requests, parse_limits
from harness.runs.tuning import optuna
from harness.schema.base import first_fault
from harness.schema.files import read_yaml
from harness.schema.limits import ERROR_RATE, names_of
from harness.schema.load import ClosedLoop
from harness.schema.online_settings import OnlineSettings
from harness.schema.setting_types import EngineName, EngineRef
from harness.schema.tune import Configuration, Space, TunePlan


def plan_tuning(
    settings: OnlineSettings,
    space_file: Path | None,
    objective: str | None,
    limits: str | None,
    configurations: int,
    reduction: int,
    finalists: int,
) -> tuple[OnlineSettings, TunePlan]:
    """Return the settings of the run, whose engines are the configurations, and the plan. Nothing is started.

    Args:
        settings: Of one engine at one load.
        objective: A latency with a statistic or a rate; None: output tokens a second in a closed loop, and
            else E2E at the median, as the load says how many tokens there are.

    Raises:
        UsageError: The engine cannot be tuned, there are several loads, the space does not fit the engine,
            or a cell has too few requests for a percentile.
    """
    optuna()
    [ref] = settings.engines
    get_engine(ref.name)
    if ref.name not in LOCAL:
        raise UsageError(
            f"{ref.name} is not started by bench, which cannot set its options", "name an engine"
        )
    if len(settings.loads) > 1:
        raise UsageError("settings are tuned at one load", "give one --concurrency, --request-rate or scale")
    [load] = settings.loads
    objective = objective or ("output_tok_per_s" if isinstance(load, ClosedLoop) else "e2e_p50")
    metric, statistic = names_of(objective)
    if metric == ERROR_RATE:
        raise UsageError(
            "an error rate of 0 cannot be improved", "name a latency such as tpot_p50, or a rate"
        )
    check_limits(terms := parse_limits(limits) if limits else [], settings)
    for text, name in ((objective, statistic), *((term.text, term.statistic) for term in terms)):
        enough_requests(text, name, settings.requests(load))
    space = read_space(space_file, ref.name, resolve_placement(settings).device)
    default = EngineRef(name=ref.name, variant=ref.variant)
    refs = [default]
    tried = [Configuration(label=get_engine_variant(default).label, variant=ref.variant)]
    for number, drawn in enumerate(space.draw(configurations, settings.seed), start=1):
        variant = EngineRef(
            name=ref.name,
            variant=f"c{number}",
            base=ref.variant,
            args=space.arguments(drawn),
            env=space.variables(drawn),
        )
        refs.append(variant)
        label = get_engine_variant(variant).label
        tried.append(Configuration(label=label, variant=variant.variant, settings=drawn))
    plan = TunePlan(
        engine=ref.name,
        base=ref.variant,
        space=space,
        configurations=tried,
        objective=objective,
        limits=limits,
        reduction=reduction,
        finalists=finalists,
    )
    return settings.model_copy(update={"engines": refs}), plan


SPACES = paths.DATA / "configs" / "spaces"


def read_space(path: Path | None, engine: EngineName, device: str) -> Space:
    """Return the space in a file, or the one that comes with `bench`, without what the device does not have.

    Raises:
        UsageError: There is no such file, it is no space of this engine, nothing in it is for the device, or
            the installed version of the engine lacks an option.
    """
    file = path or get_engine(engine).space or SPACES / f"{engine}.yaml"
    if path is None and not file.exists():
        ready = ", ".join(sorted(ready.stem for ready in SPACES.glob("*.yaml")))
        raise UsageError(
            f"no space of settings comes with bench for {engine}", f"give --space FILE; ready: {ready}"
        )
    space = _parsed(file)
    if space.engine != engine:
        raise UsageError(
            f"{file} is a space of {space.engine}, not of {engine}", "name another file or engine"
        )
    here = space.on(device)
    if not here.parameters:
        what = f"has nothing for a {device} device" if space.parameters else "has neither args nor env"
        raise UsageError(f"{file} {what}", "name the values to try: args: {--option: [1, 2]}")
    local = LOCAL[engine]
    installation = local.installed()
    if here.args and (unknown := sorted(set(here.flags) - local.flags(installation))):
        raise UsageError(
            f"{file}: {local.display} {installation.version} has no option {', '.join(unknown)}",
            f"correct the file; `{' '.join(local.help_command(installation))}` lists the options",
        )
    return here


def _parsed(file: Path) -> Space:
    if not file.is_file():
        raise UsageError(f"{file} is not a file", "name a YAML file with engine, and args or env")
    try:
        return Space.model_validate(read_yaml(file, "correct the file") or {})
    except ValidationError as error:
        hint = "a space has engine, about, args and env; `bench schema space` prints it"
        raise UsageError(f"{file}: {first_fault(error)}", hint) from None
