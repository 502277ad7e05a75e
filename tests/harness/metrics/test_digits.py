"""Numbers within sentences."""

from __future__ import annotations

from harness.metrics.digits import digits


def test_no_number_has_an_exponent() -> None:
    values = [0.012345, 1.0, 27.256, 999.4, 999.6, 1270.4, 2_834_000]
    shown = ["0.0123", "1", "27.3", "999", "1,000", "1,270", "2,834,000"]
    assert list(map(digits, values)) == shown
