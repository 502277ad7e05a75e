"""The notice of a cell whose text came in large chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.metrics.summary import summarize
from harness.schema.facts import Value
from harness.schema.load import ClosedLoop, load_text
from harness.schema.results import Speculation, SpeculationCount
from tests.harness.metrics.conftest import build

Tables = Callable[[Sequence[dict[str, Any]]], tuple[pd.DataFrame, pd.DataFrame]]
LOAD = ClosedLoop(concurrency=1)
STEP_S = 0.005


def answered(*chunks: int, requests: int = 8) -> list[dict[str, Any]]:
    """Requests answered in chunks of so many tokens, a token every 5 ms, sent when a chunk is full."""
    rows = []
    for i in range(requests):
        sent, tokens, stream = float(i), 0, []
        for size in chunks:
            tokens += size
            stream.append((sent + 0.04 + (tokens - 1) * STEP_S, size))
        rows.append({"t_sched": None, "t_sent": sent, "chunks": stream, "load": load_text(LOAD)})
    return rows


def noticed(rows: Sequence[dict[str, Any]], tokens_per_step: float | None = None) -> list[dict[str, Value]]:
    """Values of the facts about chunks, of the repeat; all repeats have the same."""
    count = SpeculationCount(steps=1, tokens_per_step=tokens_per_step or 1, source="a test")
    drafted = [Speculation(engine="roseinfer", label="roseinfer", load=LOAD, repeat=0, count=count)]
    summaries = summarize(*build(rows), drafted=drafted if tokens_per_step else ())
    repeat, pooled = ([n.values for n in s.notices if n.kind == "large_chunks"] for s in summaries)
    assert repeat == pooled
    return repeat


@pytest.mark.parametrize("chunks", [(1,) * 64, (1, *(4,) * 15, 3), (4,) * 16, (2, 1, 30, *(1,) * 40)])
def test_what_engines_send_is_not_noticed(chunks: tuple[int, ...]) -> None:
    assert noticed(answered(*chunks)) == []


def test_text_that_a_gateway_holds_back_is_noticed() -> None:
    [values] = noticed(answered(*(16,) * 4))
    assert values == {"usual": 16, "first": 16, "tokens_per_step": 1, "icl_ms": pytest.approx(80)}


def test_a_first_chunk_alone_moves_ttft() -> None:
    [values] = noticed(answered(24, *(1,) * 40))
    assert values["first"] == 24 and "usual" not in values


def test_an_answer_that_comes_whole_has_no_gaps() -> None:
    [values] = noticed(answered(64))
    assert "icl_ms" not in values


def test_an_engine_that_drafts_says_so() -> None:
    rows = answered(1, *(9,) * 7)
    assert noticed(rows, 2.5) == []
    [values] = noticed(rows, 2)
    assert values["tokens_per_step"] == 2


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_it_is_said_exactly_where_half_of_the_tokens_came_so(sizes: list[int]) -> None:
    large = sum(size for size in sizes if size > 4)
    assert bool(noticed(answered(*sizes, requests=2))) == (sizes[0] > 4 or 2 * large > sum(sizes))
