"""`bench search`: the highest load within limits, for each engine."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from pydantic import ValidationError

from harness.cli.options import Output, with_settings
from harness.errors import UsageError
from harness.schema.base import first_fault
from harness.schema.online_settings import OnlineSettings
from harness.schema.search import SearchAxis, SearchPlan

#: Settings that a search decides itself, or cannot use.
DECIDED = (
    *("scales", "concurrency", "rounds", "request_rate", "ramp", "rate_series", "preset", "repeats"),
    *("slo", "aa", "until", "until_seconds"),
    *("profile", "profile_only"),
)

EXAMPLES = (
    "bench search --by concurrency --slo 'ttft_p99<=200ms,tpot_p99<=30ms'",
    "bench search --base-url http://127.0.0.1:8000 --slo 'ttft_p99<=500ms'",
    "bench search --by agents --dataset agentperf --turns recorded --endpoint chat --slo 'ttft_p90<=2s'",
)
COMMON = (
    *("slo", "by", "lowest", "highest", "max_seconds", "engines", "model", "base_url"),
    *("trace", "input_len", "output_len", "config"),
)

Slo = Annotated[
    str | None, typer.Option(help="limits, all of which must hold", metavar="ttft_p99<=200ms,tpot_p99<=30ms")
]
By = Annotated[
    SearchAxis,
    typer.Option(
        help="what a load is: requests/s, requests in flight, agents that work on one job after the other "
        "(--dataset and --turns), or a multiple of a trace's own rate"
    ),
]
Lowest = Annotated[float | None, typer.Option(help="lightest load that may be tried", metavar="LOAD")]
Highest = Annotated[float | None, typer.Option(help="heaviest load that may be tried", metavar="LOAD")]
First = Annotated[float | None, typer.Option(help="load that is tried first", metavar="LOAD")]
Cells = Annotated[
    int, typer.Option(min=3, metavar="N", help="most cells (a load measured once) of each engine")
]
PerStart = Annotated[
    int, typer.Option(min=1, metavar="N", help="cells before an engine's server is started again")
]
Tolerance = Annotated[
    float,
    typer.Option(
        min=0.01,
        metavar="SHARE",
        help="an engine is done when the interval of its highest load is narrower than this share of it",
    ),
]
MaxSeconds = Annotated[
    float | None,
    typer.Option(min=1, metavar="S", help="time for the search: nothing is begun that would not end in it"),
]


def _plan(values: dict[str, Any]) -> SearchPlan:
    """Return the plan that the command's own options mean.

    Raises:
        UsageError: There are no limits, or the bounds contradict each other.
    """
    if values["slo"] is None:
        raise UsageError("a search needs limits", "give --slo 'ttft_p99<=200ms,tpot_p99<=30ms'")
    from harness.runs.limits import parse_limits

    for term in parse_limits(values["slo"]):
        if not term.at_most:
            raise UsageError(
                f"a search cannot use {term.text!r}: a heavier load may meet it where a lighter one does not",
                "give limits on latencies or error_rate",
            )
    options = {name: values[name] for name in SearchPlan.model_fields.keys() & values.keys()}
    try:
        return SearchPlan.make(limits=values["slo"], **options)
    except ValidationError as error:
        name, colon, what = first_fault(error).partition(": ")
        option = f"--{name.replace('_', '-')}" if colon else name
        raise UsageError(f"{option}{colon}{what}", "see `bench search --help-all`") from None


def lasting_settings(settings: OnlineSettings, plan: SearchPlan) -> OnlineSettings:
    """Return the settings, with the plan's times where nothing says what part of a cell is measured. Agents
    take as many jobs as the rounds ask for, if nothing else is given."""
    if plan.by == "agents" and "n" not in settings.model_fields_set:
        settings = settings.model_copy(update={"n": 1})
    if settings.cut is not None or settings.min_duration is not None:
        return settings
    return settings.model_copy(update=plan.times())


@with_settings(OnlineSettings, without=DECIDED, derive=lambda values: _plan(values).settings())
def search(
    settings: OnlineSettings | None,
    output: Output,
    slo: Slo = None,
    by: By = "rate",
    lowest: Lowest = None,
    highest: Highest = None,
    first: First = None,
    cells: Cells = 16,
    cells_per_start: PerStart = 4,
    tolerance: Tolerance = 0.1,
    max_seconds: MaxSeconds = None,
) -> None:
    """Find the highest load that each engine carries within limits."""
    plan = None
    if settings is not None:
        plan = _plan(locals()).model_copy(update={"of": settings.counted})
        settings = lasting_settings(settings, plan)
        _check(settings, plan)
    from harness.cli.measure import measure

    measure(settings, output, plan)


def _check(settings: OnlineSettings, plan: SearchPlan) -> None:
    """Check that the limits can be judged with these settings.

    Raises:
        UsageError: They cannot.
    """
    from harness.runs.limits import check_limits, enough_requests, parse_limits

    if plan.by == "agents" and settings.turns is None:
        raise UsageError(
            "--by agents needs jobs, and there are none",
            "give --dataset agentperf, or another of docs/workloads.md#agents, and --turns recorded",
        )
    seconds = settings.cell_s
    check_limits(terms := parse_limits(plan.limits), settings)
    for term in terms if settings.turns is None else ():  # a session has many requests
        share = settings.measured_s / seconds if seconds else 1.0
        enough_requests(term.text, term.statistic, settings.n, share)
