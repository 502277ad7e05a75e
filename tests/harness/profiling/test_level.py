"""The level of a load, counted by hand."""

from __future__ import annotations

import pandas as pd
import pytest

from harness.profiling.level import measure_level, measure_levels
from harness.schema.load import TraceLoad, load_text


def test_level_as_tokens_met_it() -> None:
    """Two requests: one alone from 1 to 2, both from 2 to 4; a third waits from 3 and fails."""
    requests = pd.DataFrame(
        {
            "cell": [0, 0, 0],
            "request": [0, 1, 2],
            "label": "A",
            "load": load_text(TraceLoad(scale=1.0)),
            "error": [None, None, "timeout"],
            "t_sent": [0.0, 1.0, 3.0],
            "t_first": [1.0, 2.0, None],
            "t_last": [4.0, 4.0, None],
            "completion_tokens": [4, 3, 0],
        }
    )
    chunks = pd.DataFrame(
        {"cell": 0, "request": [0, 0, 0, 0, 1, 1], "t": [1.0, 2.0, 3.0, 4.0, 2.0, 4.0],
         "tokens": [1, 1, 1, 1, 1, 2]}
    )  # fmt: skip
    level = measure_level(requests, chunks)
    assert level is not None
    assert level.in_flight == 2
    assert level.running == pytest.approx((1 + 2 + 2 + 2 + 2 + 2 * 2) / 7)
    assert level.step_ms == pytest.approx(1e3 * (3 + 2) / (3 + 2))
    assert measure_levels(requests, chunks) == {("A", TraceLoad(scale=1.0)): level}
    assert measure_level(requests[requests["error"].notna()], chunks) is None
