"""Two engines at one load, statistic by statistic: how far apart, how surely, what more it would take."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.metrics.estimates import COMPARED, COMPARED_OF_BATCH, Key
from harness.metrics.holm import holm
from harness.metrics.intervals import LEVEL, Effect, Estimate, are_paired, common, difference, ratio, ratios
from harness.metrics.power import repeats_to_find
from harness.metrics.primary import SHARE, is_primary
from harness.schema.base import Verdict
from harness.schema.compare_results import EFFECTS
from harness.schema.load import Batch, Load
from harness.schema.metrics import METRICS


@dataclass(frozen=True)
class Contrast:
    """One statistic of two engines at one load. `ratio` is a / b, `delta` is a − b.

    Attributes:
        adjusted_p: the p-value of the ratio, corrected for all comparisons made at once.
        comparisons: how many those are.
        level: its part of the level of all of them, before any is found.
    """

    load: Load
    metric: str
    statistic: str
    a: Estimate
    b: Estimate
    ratio: Effect
    delta: Effect
    adjusted_p: float | None = None
    comparisons: int = 1
    level: float = LEVEL

    @property
    def primary(self) -> bool:
        """Whether it is one of those that the verdict is about first."""
        return is_primary(self.load, self.metric, self.statistic)

    @property
    def verdict(self) -> Verdict:
        """Of `a` against `b`, at 5 % for all comparisons made at once."""
        if self.adjusted_p is None:
            return "not enough data"
        if self.adjusted_p > LEVEL or self.ratio.holds_one:
            return "no difference"
        return "better" if (self.ratio.value < 1) == METRICS[self.metric].lower_is_better else "worse"

    @property
    def paired(self) -> bool:
        """Whether it is compared repeat by repeat, as both had the same work in each."""
        return are_paired(self.a, self.b)

    @property
    def spread(self) -> float | None:
        """Standard deviation of the logarithm from repeat to repeat, of both, or where they are paired of the
        ratio; None if one was seen once."""
        if not (self.a.has_log and self.b.has_log) or self.missing:
            return None
        if self.paired:
            return ratios(self.a, self.b).spread(log=True)
        found = [(estimate.spread(log=True), estimate.repeats - 1) for estimate in (self.a, self.b)]
        known = [(spread, freedom) for spread, freedom in found if spread is not None]
        if len(known) < 2:
            return None
        return math.sqrt(math.fsum(s * s * n for s, n in known) / sum(n for _, n in known))

    @property
    def repeats_to_find(self) -> dict[str, int | None]:
        """Repeats of each that would find a difference of so much; None: unknown, or too many."""
        spread, paired = self.spread, self.paired
        return {
            name: None
            if spread is None
            else repeats_to_find(effect, spread, self.repeats, self.level, paired=paired)
            for name, effect in EFFECTS.items()
        }

    @property
    def repeats(self) -> tuple[int, int]:
        """Of `a` and of `b`."""
        return self.a.repeats, self.b.repeats

    @property
    def missing(self) -> int:
        """Requests or tokens that the poorer sample lacks to support the statistic."""
        return max(self.a.missing, self.b.missing)


def contrast(
    load: Load, a: Mapping[Key, Estimate], b: Mapping[Key, Estimate], keys: Iterable[Key] | None = None
) -> list[Contrast]:
    """Compare the statistics that both engines have, `b`'s not being 0; of repeats with work of their own,
    those that both have.

    Args:
        keys: The statistics; None: those that a run at such a load is compared by.
    """
    if keys is None:
        keys = COMPARED_OF_BATCH if isinstance(load, Batch) else COMPARED
    known = [key for key in keys if key in a and key in b and b[key].value > 0]
    return [
        Contrast(load, *key, *both, ratio(*both), difference(*both))
        for key in known
        for both in [common(a[key], b[key])]
    ]


def judged(contrasts: Sequence[Contrast]) -> list[Contrast]:
    """The same, their p-values corrected for all of them: a chance of 5 % at most of any false difference.

    The primary ones share most of it, the others the rest.
    """
    known = [contrast.primary for contrast in contrasts if contrast.ratio.p is not None]
    first, others = known.count(True), known.count(False)
    of_first, of_others = (SHARE / first, (1 - SHARE) / others) if first and others else (1.0, 1.0)
    weights = [of_first if contrast.primary else of_others for contrast in contrasts]
    total = first * of_first + others * of_others
    adjusted = holm([contrast.ratio.p for contrast in contrasts], weights)
    return [
        replace(
            contrast, adjusted_p=p, comparisons=max(1, len(known)), level=LEVEL * weight / (total or weight)
        )
        for contrast, p, weight in zip(contrasts, adjusted, weights, strict=True)
    ]
