"""What the host did in a profile, by name, as torch's own tables have it."""

from __future__ import annotations

from harness.profiling.reading.figures import _merge, _sum_by_name
from harness.profiling.reading.host import self_times
from harness.profiling.reading.timeline import Timeline


def totals(timeline: Timeline) -> dict[str, tuple[int, float]]:
    """Count and µs of self time of every operator, range and call."""
    spans = _merge(timeline.ops, timeline.ranges, timeline.calls)
    return _sum_by_name(timeline, spans, self_times(spans))
