"""What an engine gives all users together, against what it gives each: one point a load.

A user's rate is 1 / TPOT at the median. A point that another load of the same engine beats is dominated; the
others are the engine's frontier.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.metrics.estimates import estimates_of
from harness.metrics.intervals import Measurement, level
from harness.metrics.rates import flow, rate_estimate
from harness.metrics.samples import Group, pool
from harness.schema.load import Load
from harness.schema.metric import MS
from harness.schema.metrics import METRICS


@dataclass(frozen=True)
class Served:
    """One engine at one load.

    Attributes:
        total: output tok/s of each GPU, or of the machine.
        user: output tok/s of one user.
        dominated: another valid load of the engine gives more of one and no less of the other.
        valid: whether all its cells are.
    """

    label: str
    load: Load
    total: Measurement
    user: Measurement
    dominated: bool = False
    valid: bool = True


def served(
    points: Sequence[Sequence[Group]],
    gpus: Mapping[str, int],
    invalid: Container[tuple[str, Load]] = (),
) -> list[Served]:
    """Every engine and load that has both rates, in the order given.

    Args:
        points: The repeats of each engine and load.
        gpus: That each engine computed on, by label; 0: the machine is what is counted.
        invalid: Labels and loads that have a cell which is not valid.
    """
    found = []
    for repeats in points:
        rate = rate_estimate(METRICS["output_tok_per_s"], [flow(group, None) for group in repeats])
        user = _user(repeats)
        if rate is not None and rate.value > 0 and user is not None:
            total = Measurement(rate.value, level(rate) if len(repeats) > 1 else None)
            label, load = repeats[0].label, repeats[0].load
            valid = (label, load) not in invalid
            found.append(Served(label, load, total.times(1 / max(1, gpus[label])), user, valid=valid))
    return with_dominated(found)


def with_dominated(points: Sequence[Served]) -> list[Served]:
    """The same points, each with whether another one of its engine, which is valid, dominates it."""
    valid = [point for point in points if point.valid]
    return [replace(point, dominated=any(_beats(other, point) for other in valid)) for point in points]


def _user(repeats: Sequence[Group]) -> Measurement | None:
    """Tokens a second of a user; None where answers have one token."""
    parts = [group.sample("tpot_ms") for group in repeats]
    if not all(part.size for part in parts):
        return None
    whole = pool(repeats).sample("tpot_ms") if len(repeats) > 1 else None
    tpot = estimates_of(parts, whole)["p50"]
    known = Measurement(tpot.value, level(tpot) if len(repeats) > 1 else None)
    return known.under(MS) if tpot.value > 0 else None


def _beats(a: Served, b: Served) -> bool:
    """Whether `a` is at least as good in both and better in one; both of one engine."""
    ours, theirs = (a.total.value, a.user.value), (b.total.value, b.user.value)
    return a.label == b.label and ours != theirs and ours[0] >= theirs[0] and ours[1] >= theirs[1]
