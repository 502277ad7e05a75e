"""Numbers as people read them: three significant digits, the same number of decimals down a column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

DASH = "–"
#: With more names than this a sentence is a list.
MANY = 4
#: From this ratio on a change is said as a factor.
AS_TIMES = 2


def decimals(values: Iterable[float | None]) -> int:
    """Number of decimals that show three digits of a middling value: 3 below 1, 2 below 10, 1 below 100."""
    sizes = [abs(value) for value in values if value is not None]
    if not sizes:
        return 0
    middle = median(sizes)
    return 3 if middle < 1 else 2 if middle < 10 else 1 if middle < 100 else 0


def two_digits(value: float) -> int:
    """Number of decimals that show two digits of a value: 0 from 10 on, 1 from 1 on, and so on, at most 3."""
    return 0 if abs(value) >= 9.95 else 1 if abs(value) >= 0.995 else 2 if abs(value) >= 0.0995 else 3


def number(value: float | None, places: int) -> str:
    """`1,234.5`, or a dash for None; what rounds to zero has no sign."""
    return DASH if value is None else f"{value:z,.{places}f}"


def signed(value: float, places: int) -> str:
    """`+1.2`, `-3.4`; what rounds to zero is `+0.0`."""
    return f"{round(value, places) + 0.0:+,.{places}f}"


def change_text(ratio: float, places: int = 1, of: float | None = None) -> str:
    """`+12.3 %`; of a large one `14.1×`.

    Args:
        of: The change of whose interval it is an end: both have one unit.
    """
    if (ratio if of is None else of) < AS_TIMES:
        return f"{100 * (ratio - 1):+.{places}f} %"
    return f"{number(ratio, min(2, decimals([ratio])))}×"


def with_ends(value: float, ends: tuple[float, float]) -> list[str]:
    """A value and the ends of its interval with two decimals, and up to two more where the ends read alike,
    or one reads as 1, which is no difference, and is not."""
    different = []
    for places in (2, 3, 4):
        texts = [f"{each:,.{places}f}" for each in (value, *ends)]
        if texts[1] != texts[2]:
            different.append(texts)
            if not any(round(end, places) == 1 != end for end in ends):
                return texts
    return different[-1] if different else [f"{each:,.2f}" for each in (value, *ends)]


def span(values: Iterable[float], places: int = 0) -> str:
    """`3`, or from the least to the most `1 to 3`."""
    each = sorted(values)
    return " to ".join(dict.fromkeys(number(end, places) for end in (each[0], each[-1])))


def plural(count: int, noun: str) -> str:
    """`1 request`, `2 requests`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def percent(part: int, whole: int) -> str:
    """`37 %`; of nothing, `0 %`. What is not none and not all is not rounded to that."""
    share = f"{100 * part / whole if whole else 0:.0f} %"
    if 0 < part < whole:
        share = {"0 %": "under 1 %", "100 %": "over 99 %"}.get(share, share)
    return share


def few(items: Sequence[str]) -> str:
    """Join as `several` does; of many the first and how many others."""
    return several(items) if len(items) <= MANY else f"{items[0]} and {len(items) - 1} others"


def several(items: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last
