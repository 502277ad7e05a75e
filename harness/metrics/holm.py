"""Many comparisons at once: the chance of any false one stays at the level."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def holm(p_values: Sequence[float | None], weights: Sequence[float] | None = None) -> list[float | None]:
    """Adjusted p-values: those below a level are differences, with at most that chance of any false one.

    Holm, A Simple Sequentially Rejective Multiple Test Procedure (Scandinavian Journal of Statistics 6,
    1979), section 4 of it with weights: valid however the statistics depend on each other, as percentiles of
    the same requests do. A comparison without a p-value stays without one and does not count.

    Args:
        weights: Above 0, how much of the level each has; all the same if not given.
    """
    weights = weights or [1.0] * len(p_values)
    known = sorted((p / weights[place], place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    left = [*accumulate(weights[place] for _, place in reversed(known))][::-1]
    for (p, place), weight in zip(known, left, strict=True):
        largest = max(largest, min(1.0, weight * p))
        adjusted[place] = largest
    return adjusted
