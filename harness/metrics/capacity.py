"""Knowledge of an engine's capacity, the load at which a cell meets the limits every second time.

A cell either meets the limits or does not, and near the capacity that is chance: a percentile of one cell
is noisy, each start of a server is a little faster or slower than another, and one disturbed cell proves
nothing. So the answer of a cell at load x is modelled as

    P(met) = LAPSE + (1 - 2 LAPSE) Φ((log(capacity / x) + start) / noise)

with unknown capacity, an unknown spread and an unknown part of it that is common to the cells of one start.
All three are on a grid, and Bayes' rule is applied cell by cell. The next load is the one after which the
capacity is expected to be known best (least entropy). This is probabilistic bisection (Waeber, Frazier and
Henderson 2013, doi:10.1137/120861898) with the noise estimated as well, as in the psi method of Kontsevich
and Tyler (1999, doi:10.1016/S0042-6989(98)00285-5). `python -m benchmarks.search_coverage` shows how often
the intervals hold the truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

Floats = npt.NDArray[np.float64]

#: Chance that a cell says the opposite of what it should whatever its load: a disturbance.
LAPSE = 0.02
#: Resolution of the capacity, in logarithms: 1 %.
STEP = 0.01
#: How far beyond the bounds a capacity may be, as a factor.
MARGIN = 4.0
#: Spreads that a cell's answer may have around the capacity, as shares of it.
NOISES = np.geomspace(0.01, 0.4, 10)
#: Parts of the spread's variance that the cells of one start have in common.
COMMON = np.array([0.1, 0.8])
#: A normal distribution on seven points (Gauss and Hermite).
_NODES, _CHANCES = np.polynomial.hermite_e.hermegauss(7)
_CHANCES = _CHANCES / _CHANCES.sum()
#: Factor by which the search goes on while only one answer is known.
LADDER = 2.0
#: A load may be so far from a bound that it is at: that of a trace is stored as 1 / load.
ROUNDING = 1e-9
#: Loads that are considered for the next cell, and capacities that are not for being too unlikely.
CANDIDATES, UNLIKELY = 17, 1e-5
#: Chance within what is reported as a 95 % interval. It is more than 95 %, because real cells depart from the
#: model: a queue's miss limits below its capacity more often than they meet them above.
CONFIDENCE = 0.98


@dataclass(frozen=True)
class Bounds:
    """The loads that may be tried, above 0, from light to heavy. `whole` where only whole numbers exist."""

    lowest: float
    highest: float
    whole: bool = False

    def nearest(self, load: float) -> float:
        """The load within the bounds that can be measured."""
        load = min(max(load, self.lowest), self.highest)
        return float(round(load)) if self.whole else load


@dataclass(frozen=True)
class Ends:
    """An estimate of a capacity, or of a ratio of two, with its interval.

    `low` is None where it is below the bounds, `high` where it is above them.
    """

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Trial:
    """A cell that was measured: its load, and whether it met every limit."""

    load: float
    met: bool


class Knowledge:
    """Chances of one engine's capacity by its cells.

    Arrays have a row for each of G capacities, S spreads and C common parts.

    Args:
        first: The first load to try.
    """

    def __init__(self, bounds: Bounds, first: float) -> None:
        self.bounds, self.first = bounds, first
        self.trials: list[Trial] = []
        low, high = np.log([bounds.lowest / MARGIN, bounds.highest * MARGIN])
        self._grid: Floats = np.arange(np.floor(low / STEP), np.ceil(high / STEP) + 1) * STEP
        self._prior: Floats = np.ones((self._grid.size, NOISES.size, COMMON.size))
        self._here: Floats = np.ones((_NODES.size, *self._prior.shape))
        self._weights = self._posterior()

    def start(self) -> None:
        """The cells that follow are answered by a server that was started again."""
        self._prior = self._weights
        self._here = np.ones_like(self._here)

    def add(self, trial: Trial) -> None:
        """Take in a cell's answer."""
        self.trials.append(trial)
        met = _chance_met(self._grid, trial.load)
        self._here = self._here * (met if trial.met else 1 - met)
        self._weights = self._posterior()

    def next_load(self) -> float:
        """The load that a next cell of the same start should have."""
        if len({trial.met for trial in self.trials}) < 2:
            return self._on_the_ladder()
        loads = self._candidates()
        return loads[int(np.argmin(self._entropies_after(loads)))]

    @property
    def exhausted(self) -> bool:
        """Tell whether the capacity is beyond a bound: the lightest load missed twice, the heaviest met."""
        light = [trial.met for trial in self.trials if trial.load <= self.bounds.lowest * (1 + ROUNDING)]
        heavy = [trial.met for trial in self.trials if trial.load >= self.bounds.highest * (1 - ROUNDING)]
        return light[-2:] == [False, False] or heavy[-2:] == [True, True]

    def capacity(self, confidence: float = CONFIDENCE) -> Ends:
        """The median, with its interval of equal tails; of whole numbers the last that is not above each."""
        low, value, high = _quantiles(self._grid, self._capacities, confidence)
        least, most = self.bounds.lowest, self.bounds.highest
        down = np.floor if self.bounds.whole else float
        return Ends(
            float(down(min(max(value, least), most))),
            None if low < least else float(down(min(low, most))),
            None if high > most else float(down(max(high, least))),
        )

    def known_within(self, tolerance: float) -> bool:
        """Tell whether the interval's ends differ by at most that share of the lower one."""
        ends = self.capacity()
        return ends.low is not None and ends.high is not None and ends.high <= ends.low * (1 + tolerance)

    def times(self, other: Knowledge, confidence: float = CONFIDENCE) -> Ends:
        """The ratio of this capacity to the other's, which has the same bounds.

        A capacity beyond a bound counts as the bound; the end that would say more than that is None.
        """
        inside, ours, theirs = self._inside, self._within_bounds, other._within_bounds
        chances = np.convolve(ours, theirs[::-1])
        grid = (np.arange(chances.size) - (inside.sum() - 1)) * STEP
        low, value, high = _quantiles(grid, chances, confidence)
        ends, other_ends = self.capacity(confidence), other.capacity(confidence)
        return Ends(
            value,
            None if ends.low is None or other_ends.high is None else low,
            None if ends.high is None or other_ends.low is None else high,
        )

    @property
    def _inside(self) -> npt.NDArray[np.bool_]:
        """(G,) which capacities are within the bounds."""
        low, high = np.log([self.bounds.lowest, self.bounds.highest])
        inside: npt.NDArray[np.bool_] = (self._grid > low - STEP) & (self._grid < high + STEP)
        return inside

    @property
    def _within_bounds(self) -> Floats:
        """Chances of the capacities within the bounds; the first and the last have those beyond as well."""
        places = np.flatnonzero(self._inside)
        clipped: Floats = np.add.reduceat(self._capacities, [0, *places[1:]])
        return clipped

    @property
    def _capacities(self) -> Floats:
        """(G,) chance of each capacity."""
        chances: Floats = self._weights.sum(axis=(1, 2))
        return chances

    def _posterior(self) -> Floats:
        """(G, S, C) with sum 1."""
        weights: Floats = self._prior * np.tensordot(_CHANCES, self._here, 1)
        weights /= weights.sum()
        return weights

    def _on_the_ladder(self) -> float:
        """While every cell said the same: as heavy again, or as light."""
        if not self.trials:
            return self.bounds.nearest(self.first)
        last = self.trials[-1]
        return self.bounds.nearest(last.load * LADDER if last.met else last.load / LADDER)

    def _candidates(self) -> list[float]:
        """Loads at quantiles of the capacity, each once."""
        quantiles = np.linspace(0.03, 0.97, CANDIDATES)
        places = np.interp(quantiles, np.cumsum(self._capacities), self._grid)
        return sorted({self.bounds.nearest(load) for load in np.exp(places).tolist()})

    def _entropies_after(self, loads: Sequence[float]) -> list[float]:
        """Return the entropy of the capacity, as expected after a cell at each of those loads."""
        likely = self._capacities > UNLIKELY
        here = np.einsum("q,qgsc->qgsc", _CHANCES, self._here[:, likely]) * self._prior[likely]
        grid, entropies = self._grid[likely], []
        for load in loads:
            met = _chance_met(grid, load)
            chances = [np.einsum("qgsc,qgsc->g", here, answer) for answer in (met, 1 - met)]
            nats = -sum(float((c * np.log(c / c.sum())).sum()) for c in chances)
            entropies.append(nats / float(sum(c.sum() for c in chances)))
        return entropies


def _chance_met(grid: Floats, load: float) -> Floats:
    """(Q, G, S, C) chance that a cell meets the limits, for each of Q starts."""
    distance = grid[:, None, None] - np.log(load)
    start = _NODES[:, None, None, None] * NOISES[:, None] * np.sqrt(COMMON)
    chance: Floats = LAPSE + (1 - 2 * LAPSE) * ndtr(
        (distance + start) / (NOISES[:, None] * np.sqrt(1 - COMMON))
    )
    return chance


def _quantiles(grid: Floats, chances: Floats, confidence: float) -> tuple[float, float, float]:
    """Lower end, median and upper end of what `grid` has the logarithms of."""
    tail = (1 - confidence) / 2
    low, value, high = np.exp(np.interp([tail, 0.5, 1 - tail], np.cumsum(chances), grid)).tolist()
    return low, value, high
