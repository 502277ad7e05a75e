"""Acceptance of drafted tokens, from pages as vLLM and SGLang write them."""

from __future__ import annotations

from typing import Any

import pytest

from harness.engines.prometheus import Samples, parse_samples
from harness.engines.registry import ENGINES
from harness.report.tables.saved_work import speculation_table
from harness.schema.load import ClosedLoop
from harness.schema.results import Speculation, SpeculationCount

# vLLM 0.32.0, shortened: two engines of one server.
VLLM = """\
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {drafts}
vllm:spec_decode_num_drafts_total{{engine="1",model_name="m"}} 5.0
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} {drafted}
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {accepted}
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="0"}} {first}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="1"}} {second}
"""
# SGLang 0.5.23, shortened.
SGLANG = """\
# TYPE sglang:spec_verify_calls_total counter
sglang:spec_verify_calls_total{{model_name="m"}} {calls}
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{{is_streaming="True",model_name="m"}} {tokens}
# TYPE sglang:spec_accept_rate gauge
sglang:spec_accept_rate{{model_name="m"}} 0.4
"""


def speculation(before: Samples, after: Samples) -> SpeculationCount | None:
    counts = (engine.speculation(before, after) for engine in ENGINES.values())
    return next(filter(None, counts), None)


def vllm(**counted: float) -> Any:
    return parse_samples(VLLM.format(**counted))


def test_what_rose_is_counted_by_position_too() -> None:
    before = vllm(drafts=10, drafted=20, accepted=5, first=4, second=1)
    after = vllm(drafts=110, drafted=220, accepted=105, first=74, second=31)
    found = speculation(before, after)
    assert found is not None
    assert (found.steps, found.accepted, found.tokens_per_step) == (100, 0.5, 2.0)
    assert found.by_position == [0.7, 0.3]


def test_sglang_reports_tokens_a_step() -> None:
    before, after = (parse_samples(SGLANG.format(calls=c, tokens=t)) for c, t in ((3, 10), (13, 35)))
    found = speculation(before, after)
    assert found is not None
    assert (found.steps, found.tokens_per_step, found.accepted, found.by_position) == (10, 2.5, 0.4, [])


@pytest.mark.parametrize("counter", ["drafts", "drafted", "accepted", "first"])
@pytest.mark.parametrize("last", [0, float("nan"), float("inf")])
def test_a_counter_that_fell_or_is_no_number_says_nothing(counter: str, last: float) -> None:
    before = {"drafts": 110, "drafted": 220, "accepted": 105, "first": 74, "second": 31}
    after = {name: 2 * value for name, value in before.items()} | {counter: last}
    assert speculation(vllm(**before), vllm(**after)) is None
    pages = [parse_samples(SGLANG.format(calls=c, tokens=t)) for c, t in ((13, 35), (23, last))]
    assert speculation(*pages) is None


@pytest.mark.parametrize("labels", ["", '{position="first"}', '{position="-1"}'])
def test_a_place_that_is_no_number_is_left_out(labels: str) -> None:
    odd = f"vllm:spec_decode_num_accepted_tokens_per_pos_total{labels} 7\n"
    counted = {"drafts": 100, "drafted": 200, "accepted": 100, "first": 70, "second": 30}
    found = speculation([], parse_samples(VLLM.format(**counted) + odd))
    assert found is not None and found.by_position == [0.7 * 100 / 105, 0.3 * 100 / 105]


@pytest.mark.parametrize("page", ["", VLLM.format(drafts=1, drafted=2, accepted=1, first=1, second=0)])
def test_where_nothing_is_drafted_nothing_is_said(page: str) -> None:
    assert speculation(parse_samples(page), parse_samples(page)) is None


def test_the_table_has_it_beside_the_time_between_tokens() -> None:
    found = speculation([], vllm(drafts=100, drafted=200, accepted=100, first=70, second=30))
    cell = Speculation(engine="vllm", label="vLLM", load=ClosedLoop(concurrency=4), repeat=0, count=found)
    table = speculation_table([cell], [])
    assert table is not None and speculation_table([], []) is None
    shown = dict(zip(table.headers, table.lines[0], strict=True))
    expected = {"accepted": "50.0 %", "tokens a step": "1.95", "by position": "67 % / 29 %"}
    assert {name: shown[name] for name in expected} == expected
