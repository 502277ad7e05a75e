"""Numbers within sentences."""

from __future__ import annotations


def digits(value: float) -> str:
    """With three significant digits, or all those before the point: `0.123`, `4.83`, `1,270`."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def per_cent(share: float, places: int = 0) -> str:
    """`12 %` of 0.12."""
    return f"{100 * share:.{places}f} %"
