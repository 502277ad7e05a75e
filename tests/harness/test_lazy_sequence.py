"""Sequences that are made whenever they are asked for are those that are held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pytest

from harness import lazy_sequence
from harness.lazy_sequence import LazySequence
from harness.runs.workload import Workload
from harness.schema.load import ClosedLoop, Load, RequestRate, TraceLoad
from harness.schema.online_settings import OnlineSettings
from harness.workload import PlannedRequest


def rows(requests: Sequence[PlannedRequest]) -> list[dict[str, Any]]:
    return [asdict(request) | {"prompt": request.prompt.tolist()} for request in requests]


@pytest.mark.parametrize(
    ("settings", "load"),
    [
        ({"concurrency": [4], "lora": {"a": 1, "base": 1}}, ClosedLoop(concurrency=4)),
        ({"request_rate": [9.0], "input_len": "uniform:3:30"}, RequestRate(req_per_s=9.0)),
        ({"trace": "builtin", "scales": [0.5]}, TraceLoad(scale=0.5)),
        ({"dataset": "builtin", "request_rate": [9.0]}, RequestRate(req_per_s=9.0)),
    ],
)
def test_a_workload_that_is_not_held_is_the_same(
    settings: dict[str, Any], load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = OnlineSettings.model_validate({"engines": ["roseinfer"], "n": 40} | settings)
    workload = Workload.make(asked, 1000, 2048)
    held = workload.requests(load, 1, 2)
    monkeypatch.setattr(lazy_sequence, "HELD", 10)
    requests = workload.requests(load, 1, 2)
    assert isinstance(held, list) and isinstance(requests, LazySequence)
    assert len(requests) == len(held) > 10
    assert rows(requests) == rows(held) == rows([requests[place] for place in range(len(requests))])
    assert rows(requests[3:7]) == rows(held[3:7])
    with pytest.raises(IndexError):
        requests[len(held)]


@pytest.mark.parametrize(("vocabulary", "n", "surely"), [(50_257, 10**8, True), (3, 10, False)])
def test_prompts_are_distinct_where_ids_are_many(vocabulary: int, n: int, surely: bool) -> None:
    asked = OnlineSettings.model_validate({"engines": ["roseinfer"], "concurrency": [4]})
    assert Workload.make(asked, vocabulary, 2048).is_distinct(n) is surely
