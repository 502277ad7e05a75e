"""A value with its interval, and simple arithmetic on both."""

from __future__ import annotations

from dataclasses import dataclass

from harness.metrics.intervals import Ends


@dataclass(frozen=True)
class Known:
    """A value with its 95 % interval; None: what was measured gives none."""

    value: float
    ci: Ends | None = None

    def times(self, factor: float) -> Known:
        """As many times as much."""
        return Known(self.value * factor, self.ci and (self.ci[0] * factor, self.ci[1] * factor))

    def under(self, numerator: float) -> Known:
        """`numerator` divided by it, which is not 0."""
        ends = (numerator / self.ci[1], numerator / self.ci[0]) if self.ci and self.ci[0] > 0 else None
        return Known(numerator / self.value, ends)
