"""Sums that profilers report themselves."""

from __future__ import annotations

from harness.profiling.reading.figures import _merge, self_times
from harness.profiling.reading.timeline import Timeline


def totals(timeline: Timeline) -> dict[str, tuple[int, float]]:
    """Count and self time in µs of operators and ranges, as torch's `key_averages` counts them."""
    spans = _merge(timeline.ops, timeline.ranges, timeline.calls)
    sums: dict[str, tuple[int, float]] = {}
    for number, us in zip(spans.name.tolist(), self_times(spans).tolist(), strict=True):
        count, total = sums.get(timeline.names[number], (0, 0.0))
        sums[timeline.names[number]] = count + 1, total + us
    return sums
