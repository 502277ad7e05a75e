"""Seeds of cells, and draws by inversion of a counter-based generator: the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

#: Sets the seeds of shapes apart from those of prompts.
_SHAPES = 1


def prompt_seed(parts: Sequence[int]) -> int:
    """Return the seed of the token ids of a load's prompts: 64 bits, so that no two loads draw the same."""
    return _seed(np.random.SeedSequence(parts))


def shape_seed(parts: Sequence[int], kind: int) -> int:
    """Return the seed of a load's times, lengths and order, apart from those of another kind of run."""
    return _seed(np.random.SeedSequence(parts, spawn_key=(kind,)))


def shape_seeds(seed: int, repeat: int, loads: int) -> list[int]:
    """Return the seed of the times, lengths and order of each load of a repeat: the same for every engine."""
    return [shape_seed([seed, repeat, i], _SHAPES) for i in range(loads)]


def _seed(sequence: np.random.SeedSequence) -> int:
    return int(sequence.generate_state(1, np.uint64)[0])


def uniforms(n: int, seed: int, stream: int) -> NDArray[np.float64]:
    """Draw (n,) numbers in (0, 1), a multiple of 2^-53 plus 2^-54. Streams of one seed are independent."""
    raw = np.random.Philox(key=np.array([seed, stream], dtype=np.uint64)).random_raw(n)
    return ((raw >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def gamma_gaps(n: int, rate: float, cv: float, seed: int, stream: int = 0) -> NDArray[np.float64]:
    """Draw (n,) gaps in seconds between arrivals at `rate` a second; `cv` is standard deviation over mean.

    Gamma distributed with shape 1 / cv²; a cv of 1 is a Poisson process.
    """
    shape = 1.0 / cv**2
    gaps: NDArray[np.float64] = special.gammaincinv(shape, uniforms(n, seed, stream)) / (shape * rate)
    return gaps


def lengths(n: int, quantiles: dict[float, int], seed: int, stream: int) -> NDArray[np.int64]:
    """Draw (n,) lengths in tokens from a quantile function: the logarithm is linear between the given points.

    `quantiles` maps 0 to the least length, 1 to the greatest, and probabilities between them to lengths.
    """
    probability = np.array(list(quantiles))
    logarithm = np.log(np.array(list(quantiles.values()), dtype=np.float64))
    return np.rint(np.exp(np.interp(uniforms(n, seed, stream), probability, logarithm))).astype(np.int64)
