"""How many repeats it takes to find a difference: a power calculation on the spread between repeats."""

from __future__ import annotations

import math

from scipy import special

from harness.metrics.intervals import LEVEL

POWER = 0.9
MAX_REPEATS = 1000

#: The spread of few repeats may be small by chance: its upper limit at this confidence is planned with.
SPREAD_CONFIDENCE = 0.8


def needed_repeats(
    effect: float, spread: float, level: float = LEVEL, power: float = POWER, *, paired: bool = False
) -> int | None:
    """Repeats of each engine with which a two-sided two-sample t-test finds `effect` with chance `power`.

    The test's statistic has a noncentral t distribution (Cohen, Statistical Power Analysis for the Behavioral
    Sciences, 1988, chapter 2; on log ratios as in Julious, Sample Sizes for Clinical Trials, 2010).

    Args:
        effect: relative difference, 0.1 for 10 %; above −1 and not 0.
        spread: standard deviation of the logarithm of the statistic from repeat to repeat, alike for both.
        level: of the test.
        paired: the test is a paired one, and the spread that of the logarithm of the ratio.

    Returns:
        At least 2; None where more than `MAX_REPEATS` are needed.
    """
    distance = abs(math.log1p(effect))
    low, high = 1, 2
    while _power(high, distance, spread, level, paired) < power:
        if high >= MAX_REPEATS:
            return None
        low, high = high, min(2 * high, MAX_REPEATS)
    while high - low > 1:
        middle = (low + high) // 2
        enough = _power(middle, distance, spread, level, paired) >= power
        low, high = (low, middle) if enough else (middle, high)
    return high


def repeats_to_find(
    effect: float, spread: float, repeats: tuple[int, int], level: float = LEVEL, *, paired: bool = False
) -> int | None:
    """`needed_repeats` planned from a run: two engines' common spread, seen in so many repeats of each.

    Args:
        level: of the verdict that is to find it.
        paired: each repeat of one has its counterpart in the other; the spread is that of their ratio.
    """
    freedom = repeats[0] - 1 if paired else sum(repeats) - 2
    return needed_repeats(effect, upper_spread(spread, freedom), level, paired=paired)


def upper_spread(spread: float, freedom: int) -> float:
    """The upper confidence limit of a spread seen with `freedom` degrees of freedom.

    Browne, On the Use of a Pilot Sample for Sample Size Determination (Statistics in Medicine 14, 1995).
    """
    return spread * math.sqrt(freedom / float(special.chdtri(freedom, SPREAD_CONFIDENCE)))


def _power(repeats: int, distance: float, spread: float, level: float, paired: bool) -> float:
    """The chance that the difference is found on its own side."""
    samples = 1 if paired else 2
    freedom = samples * (repeats - 1)
    error = spread * math.sqrt(samples / repeats)
    if error * 1e6 < distance:
        return 1.0
    beyond = special.stdtrit(freedom, 1 - level / 2)
    return float(1 - special.nctdtr(freedom, distance / error, beyond))
