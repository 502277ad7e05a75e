"""Answers of a run to those who have to choose: limits that hold, frontiers, what tokens cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.metrics.attainment import Served, attained, each_request, goodput, reached, served
from harness.metrics.intervals import Measurement
from harness.metrics.samples import Group, by_load
from harness.runs.limits import holds, parse_limits
from harness.runs.reader import Run
from harness.schema.limits import GateTerm, Slo
from harness.schema.load import Load
from harness.schema.machines import Hourly, Prices, gpu_names, hourly
from harness.schema.metrics import latencies
from harness.schema.run_info import gpus_used

_TOKENS, _HOUR_S = 1e6, 3600.0


@dataclass(frozen=True)
class Asked:
    """Limits and prices that a reader brings."""

    terms: Sequence[GateTerm] = ()
    prices: Prices | None = None


NOTHING = Asked()


@dataclass(frozen=True)
class Within:
    """One engine at one load, against the limits.

    Attributes:
        values: what each limit is on, in their order; None: there is no such value.
        attained: share of requests that meet every limit on latencies; None without such.
        goodput: such requests a second.
        valid: whether all its cells are.
        holds: whether every value is on the right side of its limit, as far as is known.
    """

    label: str
    load: Load
    values: Sequence[Measurement | None]
    attained: Measurement | None
    goodput: Measurement | None
    valid: bool
    holds: bool


@dataclass(frozen=True)
class Decision:
    """Limits, frontier and prices of one run.

    Attributes:
        slo: limits on each request.
        gpus: of the machine, which `hourly` is of; 0: rates and prices are of the machine.
        hourly: what an hour of all of it costs; None without prices.
        joules: for each output token, by engine and load, where energy was counted.
    """

    terms: Sequence[GateTerm]
    slo: Slo | None
    within: Sequence[Within]
    served: Sequence[Served]
    gpus: int
    hourly: Hourly | None
    joules: Mapping[tuple[str, Load], Measurement]

    @property
    def unit(self) -> str:
        """Noun of that which a rate is of."""
        return "GPU" if self.gpus else "machine"

    def cost(self, point: Served) -> Measurement | None:
        """Price of a million output tokens at that load."""
        if self.hourly is None:
            return None
        return point.total.under(self.hourly.amount / max(1, self.gpus) * _TOKENS / _HOUR_S)

    def at_limits(self, label: str) -> Served | None:
        """Valid load within every limit that gives the most tokens."""
        fitting = {
            limited.load
            for limited in self.within
            if limited.label == label and limited.valid and limited.holds
        }
        points = [point for point in self.served if point.label == label and point.load in fitting]
        return max(points, key=lambda point: point.total.value, default=None)


def decide(run: Run, asked: Asked = NOTHING) -> Decision:
    """Without limits of the reader's those of a search or tuning hold, or the run's own service level at p99;
    without prices those that the run was made with.

    Raises:
        UsageError: The prices have none for the run's machine.
    """
    settings, environment = run.meta.settings, run.meta.environment
    terms, prices = list(asked.terms) or _own_terms(run), asked.prices or run.meta.prices
    slo = each_request(terms) or settings.slo
    rank = {label: place for place, label in enumerate(dict.fromkeys(s.label for s in run.pooled))}
    points = list(by_load([group for group in run.groups if len(group.requests)]))
    points.sort(key=lambda repeats: rank[repeats[0].label])
    answered = [good for repeats in points if (good := [group for group in repeats if len(group.metrics)])]
    invalid = {(summary.label, summary.load) for summary in run.repeats if not summary.valid}
    return Decision(
        terms,
        slo,
        [_within(repeats, terms, slo, invalid) for repeats in points] if terms or slo else [],
        served(answered, {point[0].label: gpus_used(run.meta, point[0].label) for point in points}, invalid),
        len(gpu_names(environment, settings.device)),
        None if prices is None else hourly(prices, environment, settings.device),
        {
            (summary.label, summary.load): Measurement(
                summary.joules_per_output_token, summary.joules_per_output_token_ci
            )
            for summary in run.pooled
            if summary.joules_per_output_token is not None
        },
    )


def _own_terms(run: Run) -> list[GateTerm]:
    """The limits that the run was made with."""
    plan = run.meta.search or run.meta.tune
    if plan is not None and plan.limits is not None:
        return parse_limits(plan.limits)
    limits = run.meta.settings.slo.model_dump(exclude_none=True) if run.meta.settings.slo else {}
    texts = [
        f"{name}={np.format_float_positional(limit, trim='-')}"
        for name, limit in limits.items()
        if name in latencies("gated")
    ]
    return parse_limits(",".join(texts)) if texts else []


def _within(
    repeats: Sequence[Group], terms: Sequence[GateTerm], slo: Slo | None, invalid: set[tuple[str, Load]]
) -> Within:
    values = [reached(repeats, term) for term in terms]
    amounts = [None if each is None else each.value for each in values]
    return Within(
        repeats[0].label,
        repeats[0].load,
        values,
        None if slo is None else attained(repeats, slo),
        None if slo is None else goodput(repeats, slo),
        (repeats[0].label, repeats[0].load) not in invalid,
        bool(terms) and all(map(holds, terms, amounts)),
    )
