"""Ranks against those of pandas."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from harness.metrics.ranks import ranks


@pytest.mark.parametrize("distinct", [1, 3, 50, 10_000])
@pytest.mark.parametrize("n", [0, 1, 2, 1000])
def test_equal_values_share_their_mean_rank(n: int, distinct: int) -> None:
    values = np.random.default_rng(n + distinct).integers(0, distinct, n).astype(np.float64)
    assert np.array_equal(ranks(values), pd.Series(values).rank().to_numpy())
