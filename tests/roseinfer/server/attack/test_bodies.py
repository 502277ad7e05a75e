"""Bodies of requests that are valid, almost valid, or nothing of the kind."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.roseinfer.server.openai.test_openapi import schema_check

pytestmark = [pytest.mark.slow, pytest.mark.integration]

Fuzz = Callable[[Callable[[st.DataObject], None]], None]

COMPLETION = {
    "model": None, "prompt": [1, 2, 3], "max_tokens": 2, "min_tokens": 0, "temperature": 0.5, "top_p": 0.9,
    "top_k": 5,
    "seed": 1, "n": 2, "stop": ["a", "b"], "ignore_eos": True, "stream": True,
    "stream_options": {"include_usage": True},
    "logprobs": 2, "return_token_ids": True, "return_metrics": True, "presence_penalty": 0.0,
    "logit_bias": None,
    "echo": False, "suffix": None, "user": "somebody",
}  # fmt: skip
CHAT = {
    "messages": [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text",
    "text": "b"}]}],
    "max_completion_tokens": 2, "logprobs": True, "top_logprobs": 2, "stream": False, "tools": None,
    "response_format": {"type": "text"},
}  # fmt: skip
PROFILE = {"output_dir": ".", "num_steps": 1, "with_stack": False}

#: Values that something, somewhere, has not expected.
VALUES = st.sampled_from(
    [
        None, True, False, 0, -1, 1, 0.5, -0.0, 2**31, 2**63, 2**64, -(2**63), 10**400, 1e308, "", "a",
        "\0", "\u202e", "😀",
        "\ud800", "a" * 300, "../../etc/passwd", "\n", [], {}, [[]], [None], [0] * 2000, ["a"] * 200, [[1],
        [2]],
        [1, "a"], {"a": 1}, {"type": "json_object"}, {"": ""}, [2**31], [-1], [0.5], "{{ 7 * 7 }}",
        "{% for %}",
    ]
) | st.recursive(st.none() | st.integers() | st.text(max_size=5), st.lists, max_leaves=10)  # fmt: skip
#: Texts that JSON parsers read differently.
RAW = st.sampled_from(
    [
        b"NaN", b"Infinity", b"-Infinity", b"1e999", b"01", b"1.", b".5", b"+1", b"0x1", b"'a'", b"\xff",
        b"\xed\xa0\x80",
        b'"\\u0000"', b'"\\ud800"', b"[" * 5000, b"[" * 600 + b"]" * 600,
        b'{"a":' * 600 + b"1" + b"}" * 600, b",", b"",
        b"//", b"1" * 5000, b'"' + b"\\" * 99 + b'"',
    ]
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value within `value`."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield (*path, key)
        yield from places(below, (*path, key))


def change(draw: st.DataObject, body: dict[str, Any]) -> bytes:
    """Exchange or drop a few values; the text that results is perhaps no JSON."""
    body = json.loads(json.dumps(body))
    for _ in range(draw.draw(st.integers(1, 3))):
        *path, key = draw.draw(st.sampled_from([*places(body)]))
        place: Any = body
        for step in path:
            place = place[step]
        if draw.draw(st.booleans()) or len(body) < 2:
            place[key] = copy.deepcopy(draw.draw(VALUES))
        else:
            del place[key]
        if not body:
            break
    data = json.dumps(body).encode()
    if draw.draw(st.integers(0, 3)) == 0:
        start = draw.draw(st.integers(0, len(data)))
        data = data[:start] + draw.draw(RAW) + data[start + draw.draw(st.integers(0, 8)) :]
    return data


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT), ("/start_profile", PROFILE)],
)
def test_mutations(serving: Any, fuzz: Fuzz, path: str, body: dict[str, Any]) -> None:
    """JSON with random changes: done, or refused with OpenAI's error."""
    before = serving.complete([1, 2, 3], max_tokens=4, ignore_eos=True).json["choices"]

    def check(draw: st.DataObject) -> None:
        reply = serving.request(path, change(draw, body))
        assert reply.status in (200, 400, 403, 404)
        if reply.status != 200:
            error = reply.json["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert error["type"] in ("invalid_request_error", "not_found_error")
            assert error["code"] is None or re.fullmatch("[a-z_]+", error["code"])
            assert error["message"] and "\n" not in error["message"]

    fuzz(check)
    assert serving.becomes_idle()
    assert serving.complete([1, 2, 3], max_tokens=4, ignore_eos=True).json["choices"] == before
    assert not [line for line in serving.log if "Traceback" in line]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_schemas(serving: Any, chatting: Any, fuzz: Fuzz, path: str) -> None:
    """Requests made from /openapi.json by schemathesis, valid and broken."""
    server = chatting if "chat" in path else serving
    fuzz(schema_check(server, path))
    assert server.becomes_idle()
    assert not server.faults
