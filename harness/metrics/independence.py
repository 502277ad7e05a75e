"""Number of independent observations that a sample is worth.

Requests that wait in one queue have similar latencies, and so have the tokens of one request. An
interval that counts each of them is too narrow: with an autocorrelation of 0.9 between requests, a 95 %
interval of p50 holds the truth in 42 % of cases.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from harness.metrics.gaps import run_starts
from harness.metrics.percentiles import ranks
from harness.metrics.samples import Sample

Floats = npt.NDArray[np.float64]

#: An autocorrelation within this many standard errors of 0 is taken as 0 (one-sided 5 %).
_NOISE = 1.645
_MOST = 0.99
#: Of ms: what lies closer together is equal, whatever rounding makes of it.
_DECIMALS = 6


@dataclass(frozen=True, eq=False)
class Dependence:
    """Dependence of the samples of one repeat: the request they belong to, and the requests next to it.

    Attributes:
        sample: its requests are numbered in the order in which they were sent.
    """

    sample: Sample

    @cached_property
    def inflation(self) -> float:
        """Factor (1 + ρ) / (1 − ρ), at least 1, by which autocorrelation of requests inflates a variance.

        ρ is the first-order autocorrelation of the normal scores of each request's mean, corrected for its
        bias (Marriott and Pope, Biometrika 41, 1954); the factor is that of a first-order autoregression
        (Bayley and Hammersley, Journal of the Royal Statistical Society supplement 8, 1946).
        """
        means = np.round(self._sums(self.sample.values) / self._counts, _DECIMALS)
        n = means.size
        if n < 3:
            return 1.0
        scores = ndtri((ranks(means) - 0.5) / n)
        power = float(scores @ scores)
        rho = float(scores[1:] @ scores[:-1]) / power if power > 0 else 0.0
        rho += (1 + 3 * rho) / n
        rho = min(rho, _MOST) if rho > _NOISE / sqrt(n) else 0.0
        return (1 + rho) / (1 - rho)

    def below(self, level: float, share: float) -> float:
        """Return the number of independent observations by which a `share` of the sample is at or below
        `level`."""
        n = self.sample.n
        if self._counts.size == n:
            return n / self.inflation
        sums = self._sums(self.sample.values <= level) - share * self._counts
        spread = float(sums @ sums) * self.inflation
        return min(float(n), share * (1 - share) * n * n / spread) if spread > 0 else float(n)

    def error_of_mean(self, mean: float) -> float:
        """Return the standard error of the sample's mean."""
        sums = self._sums(self.sample.values - mean)
        return sqrt(float(sums @ sums) * self.inflation) / self.sample.n

    @property
    def requests(self) -> float:
        """Number of independent requests."""
        return self._counts.size / self.inflation

    @cached_property
    def _starts(self) -> npt.NDArray[np.int64]:
        """Positions in the sample at which the values of each request begin."""
        return run_starts(self.sample.request)

    @cached_property
    def _order(self) -> npt.NDArray[np.int64] | None:
        """The order that makes the requests ascend; None where they do."""
        request = self.sample.request[self._starts]
        return None if np.all(request[1:] >= request[:-1]) else np.argsort(request, kind="stable")

    @cached_property
    def _counts(self) -> Floats:
        """(requests,) samples of each request."""
        return self._sums(np.ones(self.sample.size, dtype=bool))

    def _sums(self, values: npt.NDArray[np.floating] | npt.NDArray[np.bool_]) -> Floats:
        """Return (requests,) the weighted sum of `values` (S,) over the samples of each request."""
        weights = self.sample.weights
        weighted = values if weights is None else values * weights
        sums: Floats = np.add.reduceat(weighted, self._starts, dtype=np.float64)
        return sums if self._order is None else sums[self._order]
