"""Batches compared: repeat by repeat, all pairs together."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from harness.metrics.contrast import compare_points
from harness.metrics.estimates import measure
from harness.metrics.samples import by_load, split
from harness.records.columns import CHUNKS, REQUESTS
from harness.schema.load import Batch, load_text
from harness.schema.results import Comparison

LOAD, TOKENS = Batch(prompts=2), 1000


def compared(rates: dict[str, dict[int, float]]) -> list[Comparison]:
    """Compare batches of two prompts whose rates are given by label and repeat, in tokens a second."""
    cells = [(label, repeat, rate) for label, each in rates.items() for repeat, rate in each.items()]
    rows = [
        {
            "cell": cell, "engine": label, "label": label, "load": load_text(LOAD), "repeat": repeat,
            "request": request, "input_tokens": 1, "output_tokens": TOKENS, "t_sched": 0.0, "t_sent": 0.0,
            "t_last": 2 * TOKENS / rate, "t_end": 2 * TOKENS / rate, "completion_tokens": TOKENS, "chunks": 0,
        }
        for cell, (label, repeat, rate) in enumerate(cells)
        for request in range(LOAD.prompts)
    ]  # fmt: skip
    requests: pd.DataFrame = pa.Table.from_pylist(rows, schema=REQUESTS).to_pandas()
    groups = split(requests, CHUNKS.empty_table().to_pandas())
    return compare_points([measure(repeats) for repeats in by_load(groups)])


def numbered(*rates: float) -> dict[int, float]:
    return dict(enumerate(rates))


def test_interval_and_p_are_those_of_scipys_paired_t_of_logarithms() -> None:
    """Published rates: the work of the repeats differs by more than the engines do."""
    a, b = (18844.0, 19121.0, 19938.0), (18036.0, 18040.0, 18925.0)
    [found] = compared({"a": numbered(*a), "b": numbered(*b)})
    paired = stats.ttest_rel(np.log(a), np.log(b))
    assert found.adjusted_p == pytest.approx(paired.pvalue)
    assert found.ci == pytest.approx(tuple(np.exp(paired.confidence_interval(0.95))))
    assert found.verdict == "better" and found.metric == "output_tok_per_s"
    unpaired = stats.ttest_ind(np.log(a), np.log(b), equal_var=False)
    assert unpaired.pvalue > 0.05 > found.adjusted_p


@settings(max_examples=25)
@given(st.lists(st.floats(10, 1e5), min_size=3, max_size=3), st.floats(0.1, 10))
def test_work_that_differs_from_repeat_to_repeat_decides_nothing(work: list[float], scale: float) -> None:
    """A repeat that is heavier for both engines leaves interval and p as they are."""
    ratios = (1.05, 1.06, 1.04)
    [plain] = compared({"a": numbered(*ratios), "b": numbered(1.0, 1.0, 1.0)})
    of_a = numbered(*(scale * w * r for w, r in zip(work, ratios, strict=True)))
    [found] = compared({"a": of_a, "b": numbered(*(scale * w for w in work))})
    assert found.ci is not None and plain.ci is not None
    assert found.ci == pytest.approx(plain.ci, rel=1e-6)
    assert found.adjusted_p == pytest.approx(plain.adjusted_p, rel=1e-6)


def test_only_common_repeats_are_compared() -> None:
    rates = {"a": {0: 100.0, 1: 110.0, 2: 999.0}, "b": {0: 50.0, 1: 55.0}}
    [found] = compared(rates)
    assert (found.a, found.b, found.repeats) == ("a", "b", (2, 2)) and found.ratio == pytest.approx(2.0)


def test_the_verdicts_hold_for_all_pairs_together() -> None:
    """A difference of one pair alone, with p = 0.03, is none beside two pairs that are as close."""
    a, b = numbered(104.0, 102.6, 105.2, 100.9), numbered(100.0, 100.0, 100.0, 100.0)
    [alone] = compared({"a": a, "b": b})
    first, *others = compared({"a": a, "b": b, "c": numbered(99.1, 101.2, 100.9, 98.9)})
    assert alone.adjusted_p is not None and 0.02 < alone.adjusted_p < 0.05 and alone.verdict == "better"
    assert first.ratio == alone.ratio and first.ci == alone.ci and first.verdict == "no difference"
    assert [found.comparisons for found in (alone, first, *others)] == [1, 3, 3, 3]


def test_one_repeat_claims_only_what_is_plain() -> None:
    [near] = compared({"a": {0: 150.0}, "b": {0: 100.0}})
    [far] = compared({"a": {0: 100.0}, "b": {0: 400.0}})
    assert (near.verdict, far.verdict) == ("no difference", "worse")
