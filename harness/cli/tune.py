"""`bench tune`: the settings of an engine that are better than its defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from harness.cli.options import Output, with_settings
from harness.cli.trust import check_trust
from harness.errors import UsageError
from harness.schema.base import first_fault
from harness.schema.online_settings import OF_RUNNING_SERVERS, OnlineSettings
from harness.schema.setting_types import RUNNING_SERVER, EngineRef

#: Settings that a tuning decides itself, or cannot use.
DECIDED = (
    *("engines", "repeats", "until", "until_seconds", "interleave"),
    *("slo", "aa", "preset", "profile", "profile_only"),
    *OF_RUNNING_SERVERS,
)

EXAMPLES = (
    "bench tune roseinfer --concurrency 8 --rounds 10",
    "bench tune vllm --space space.yaml --request-rate 4 --objective e2e_p90",
)
COMMON = (
    *("space", "objective", "slo", "configurations", "finalists", "repeats"),
    *("model", "concurrency", "rounds", "request_rate", "config"),
)

EngineArgument = Annotated[str | None, typer.Argument(help="NAME or NAME@VARIANT, whose settings are tuned")]
SpaceFile = Annotated[
    Path | None,
    typer.Option("--space", help="YAML file of values to try; else bench's own", metavar="FILE"),
]
Objective = Annotated[
    str | None,
    typer.Option(
        help="what is to be best: a latency with a statistic, or a rate; "
        "else output_tok_per_s in a closed loop, or e2e_p50",
        metavar="tpot_p50",
    ),
]
Limits = Annotated[str | None, typer.Option(help="limits that must hold", metavar="ttft_p99<=200ms")]
Configurations = Annotated[
    int, typer.Option(min=1, metavar="N", help="how many are drawn from the space, beside the default")
]
Reduction = Annotated[int, typer.Option(min=2, metavar="N", help="one in N goes on after 1, N, N² … repeats")]
Finalists = Annotated[
    int, typer.Option(min=1, metavar="N", help="how many are compared with the default at the end")
]
Repeats = Annotated[
    int, typer.Option(min=2, metavar="N", help="repeats of the default and of each finalist at the end")
]


def _settings(values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run that the command's own options mean. Raises UsageError."""
    if values["engine"] is None:
        raise UsageError("no engine is named", "bench tune ENGINE --space FILE")
    try:
        ref = EngineRef.model_validate(values["engine"])
    except ValidationError as error:
        raise UsageError(first_fault(error), "bench tune vllm, or vllm@VARIANT") from None
    if ref.name == RUNNING_SERVER:
        raise UsageError("the settings of a running server cannot be changed", "name an engine, such as vllm")
    return {"engines": [ref], "repeats": values["repeats"]}


@with_settings(OnlineSettings, without=DECIDED, derive=_settings)
def tune(
    settings: OnlineSettings | None,
    output: Output,
    engine: EngineArgument = None,
    space: SpaceFile = None,
    objective: Objective = None,
    slo: Limits = None,
    configurations: Configurations = 12,
    reduction: Reduction = 3,
    finalists: Finalists = 2,
    repeats: Repeats = 5,
) -> None:
    """Find settings of an engine that are better than its defaults, with a verdict on each."""
    plan = None
    if settings is not None:
        from harness.runs.tune_plan import plan_tuning

        settings, plan = plan_tuning(settings, space, objective, slo, configurations, reduction, finalists)
        if space is not None:
            check_trust(space, settings, output.trust, {"engines"})
    from harness.cli.measure import measure

    measure(settings, output, tune=plan)
