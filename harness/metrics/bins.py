"""Large samples in bins, narrow near the percentiles that are reported."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harness.schema.metrics import PERCENTILES

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def _levels() -> Floats:
    """(L,) ascending fractions of a sample at which bins end: even over all, dense around each percentile."""
    near = [q / 100 + np.linspace(-1, 1, 128) * min(q, 100 - q) / 100 for q in PERCENTILES]
    return np.unique(np.clip(np.concatenate([np.linspace(0, 1, 512), *near]), 0, 1))


_LEVELS = _levels()

#: Of more values, evenly picked ones say where bins end.
_PICKED = 1 << 16


def bins(values: Floats, weights: Ints | None) -> tuple[Ints, Floats]:
    """(S,) bin of each value, and (L,) the ascending weighted mean of each bin."""
    ascending = np.sort(values[:: -(-len(values) // _PICKED)])
    ends = ascending[np.ceil(_LEVELS * (len(ascending) - 1)).astype(np.int64)]
    edges = np.unique(np.append(ends, (values.min(), values.max())))
    level = np.searchsorted(edges, values).astype(np.int64)
    counts = np.ones(len(level)) if weights is None else weights
    means = np.bincount(level, counts * values) / np.bincount(level, counts)
    return level, np.clip(means, np.append(edges[0], edges[:-1]), edges)
