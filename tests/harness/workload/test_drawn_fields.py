"""What is drawn for each request beside its prompt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engines.adapters.openai import OpenAI
from harness.engines.base import RequestSettings
from harness.errors import UsageError
from harness.schema.online_settings import OnlineSettings
from harness.workload import warmup
from harness.workload.planned_requests import BASE, DrawnFields

REQUESTS = warmup([(4, 4)] * 400, 100, seed=1)
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}


def test_adapters_come_by_their_weights_and_by_the_seed_alone() -> None:
    fields = DrawnFields({"a": 3, BASE: 1, "never": 0})
    drawn = [request.adapter for request in fields.draw(REQUESTS, 7)]
    assert drawn == [request.adapter for request in fields.draw(REQUESTS, 7)]
    assert drawn != [request.adapter for request in fields.draw(REQUESTS, 8)]
    assert set(drawn) == {"a", None}
    assert 250 < drawn.count("a") < 350


@given(share=st.floats(0, 1), seed=st.integers(0, 2**63))
def test_a_larger_share_has_the_format_wherever_a_smaller_one_has_it(share: float, seed: int) -> None:
    few, more = (
        [request.response_format for request in DrawnFields({}, SCHEMA, part).draw(REQUESTS, seed)]
        for part in (share / 2, share)
    )
    assert all(b is not None for a, b in zip(few, more, strict=True) if a is not None)


def test_they_stand_in_the_body() -> None:
    [request] = DrawnFields({"a": 1}, {"type": "json_object"}).draw(REQUESTS[:1], 1)
    body = json.loads(OpenAI().encoder(RequestSettings(None, "m"))(request))
    assert (body["model"], body["response_format"]) == ("a", {"type": "json_object"})


def test_a_schema_becomes_a_format(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    fields = DrawnFields.make({}, path, 1.0)
    assert fields is not None and fields.response_format is not None
    assert fields.response_format["json_schema"]["schema"] == SCHEMA
    path.write_text('{"type": "json_object"}')
    again = DrawnFields.make({}, path, 1.0)
    assert again is not None and again.response_format == {"type": "json_object"}
    assert DrawnFields.make({}, None, 1.0) is None


@pytest.mark.parametrize("content", ["[1]", "{", None])
def test_a_file_that_is_no_format(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "schema.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match="--response-format"):
        DrawnFields.make({}, path, 1.0)


@pytest.mark.parametrize("weights", ["a:1,a:2", "a:-1", "a:0", "a:x"])
def test_weights_that_are_none(weights: str) -> None:
    with pytest.raises(ValueError):
        OnlineSettings(lora=weights)


def test_an_answer_of_a_format_ends_on_its_own() -> None:
    with pytest.raises(ValueError, match="--no-ignore-eos"):
        OnlineSettings(response_format="f.json")
