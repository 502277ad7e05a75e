"""Many comparisons at once: the chance of any false one stays at the level."""

from __future__ import annotations

from collections.abc import Sequence


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjusted p-values: those below a level are differences, with at most that chance of any false one.

    Holm, A Simple Sequentially Rejective Multiple Test Procedure (Scandinavian Journal of Statistics 6,
    1979): valid however the statistics depend on each other, as percentiles of the same requests do. A
    comparison without a p-value stays without one and does not count.
    """
    known = sorted((p, position) for position, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, position) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        adjusted[position] = largest
    return adjusted
