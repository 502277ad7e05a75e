"""How many independent observations a sample is worth.

Requests that wait in one queue have similar latencies, and so have the tokens of one request. An
interval that counts each of them is too narrow: with an autocorrelation of 0.9 between requests, a 95 %
interval of p50 holds the truth in 42 % of cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from harness.metrics import on_disk
from harness.metrics.gaps import run_starts
from harness.metrics.long_frames import argsort, concatenate, map_parts
from harness.metrics.ranks import ranks
from harness.metrics.samples import Sample, Values

Floats = npt.NDArray[np.float64]

#: An autocorrelation within this many standard errors of 0 is taken as 0 (one-sided 5 %).
_NOISE = 1.645
_MOST = 0.99
#: Of ms: what lies closer together is equal, whatever rounding makes of it.
_DECIMALS = 6


@dataclass(frozen=True, eq=False)
class Dependence:
    """What the samples of one repeat share: the request they belong to, and the requests next to it.

    Attributes:
        sample: its requests are numbered in the order in which they were sent.
    """

    sample: Sample

    @cached_property
    def inflation(self) -> float:
        """By how much autocorrelation between requests inflates a variance: (1 + ρ) / (1 − ρ), at least 1.

        ρ is the first-order autocorrelation of the normal scores of each request's mean, corrected for its
        bias (Marriott and Pope, Biometrika 41, 1954); the factor is that of a first-order autoregression
        (Bayley and Hammersley, Journal of the Royal Statistical Society supplement 8, 1946).
        """
        sums = self._sums(lambda values: values)
        means = map_parts(lambda total, count: np.round(total / count, _DECIMALS), sums, self._counts)
        n = means.size
        if n < 3:
            return 1.0
        scores = map_parts(lambda rank: ndtri((rank - 0.5) / n), ranks(means))
        power = float(scores @ scores)
        rho = float(scores[1:] @ scores[:-1]) / power if power > 0 else 0.0
        rho += (1 + 3 * rho) / n
        rho = min(rho, _MOST) if rho > _NOISE / sqrt(n) else 0.0
        return (1 + rho) / (1 - rho)

    def below(self, level: float, share: float) -> float:
        """The number of independent observations that support the claim that a `share` of the sample is at
        or below `level`."""
        n = self.sample.n
        if self._counts.size == n:
            return n / self.inflation
        below = self._sums(lambda values: values <= level)
        sums = map_parts(lambda some, all_: some - share * all_, below, self._counts)
        spread = float(sums @ sums) * self.inflation
        return min(float(n), share * (1 - share) * n * n / spread) if spread > 0 else float(n)

    def error_of_mean(self, mean: float) -> float:
        """Standard error of the sample's mean."""
        sums = self._sums(lambda values: values - mean)
        return sqrt(float(sums @ sums) * self.inflation) / self.sample.n

    @property
    def requests(self) -> float:
        """Independent requests."""
        return self._counts.size / self.inflation

    @cached_property
    def _order(self) -> npt.NDArray[np.int32] | None:
        """Puts the requests in order; None where they are."""
        request = concatenate(part.request[run_starts(part.request)] for part in self._parts())
        return None if np.all(request[1:] >= request[:-1]) else argsort(request)

    @cached_property
    def _counts(self) -> Floats:
        return self._sums(lambda values: np.ones(values.size, dtype=bool))

    def _sums(self, of: Callable[[Floats], npt.NDArray[np.floating] | npt.NDArray[np.bool_]]) -> Floats:
        """(requests,) the weighted sum of what `of` makes of the values of each request."""

        def part_sums(part: Values) -> Floats:
            weighted = of(part.values) if part.weights is None else of(part.values) * part.weights
            return np.add.reduceat(weighted, run_starts(part.request), dtype=np.float64)

        sums: Floats = concatenate(map(part_sums, self._parts()))
        return sums if self._order is None else sums[self._order]

    def _parts(self) -> Iterator[Values]:
        """The values, those of whole requests at a time."""
        for values, weights, request in self.sample.parts():
            begin = 0
            while begin < values.size:
                end = begin + on_disk.PART
                while end < values.size and request[end] == request[end - 1]:
                    end += 1
                rows = slice(begin, end)
                yield Values(values[rows], None if weights is None else weights[rows], request[rows])
                begin = end
