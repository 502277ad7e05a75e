"""Requests that a server describes and refuses: status, OpenAI's error object, a server that still serves."""

from __future__ import annotations

import copy
import http.client
import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode, openapi
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
)

from tests.roseinfer.conftest import TEXT_VOCAB
from tests.roseinfer.server.clients import connect

HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n"
)
OK = {"prompt": [1, 2, 3], "max_tokens": 2}
CODES = {None, "context_length_exceeded", "unsupported_parameter", "unknown_parameter"}


def check_error(reply: Any, status: int) -> dict[str, Any]:
    assert reply.status == status, reply.body
    assert reply.headers["content-type"] == "application/json"
    error = reply.json["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    codes = {401: {"invalid_api_key"}, 429: {"rate_limit_exceeded"}, 400: CODES}
    assert error["message"] and "\n" not in error["message"]
    assert error["code"] in codes.get(status, {None, "model_not_found"})
    return error  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b'{"prompt": "a"} x', b"{}",
        b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}',
        b'{"prompt": "a", "temperature": NaN}', b'{"prompt": "a", "temperature": 1e999}',
        b'{"prompt": "a", "max_tokens": 1e3000}', b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"prompt": "a", "x": ' + b"[" * 100_000,
    ],
)  # fmt: skip
def test_malformed_bodies(serving: Any, body: bytes) -> None:
    error = check_error(serving.request("/v1/completions", body), 400)
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": ""}, "prompt"), ({"prompt": []}, "prompt"), ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"), ({"prompt": [[1], "a"]}, "prompt"), ({"prompt": [True]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"), ({"prompt": [-1]}, "prompt"), ({"prompt": [TEXT_VOCAB]}, "prompt"),
        ({"prompt": [2**70]}, "prompt"), ({"prompt": [None]}, "prompt"), ({"prompt": 3}, "prompt"),
        ({"prompt": [1] * 1023}, "prompt"), ({"prompt": "word " * 2000}, "prompt"),
        ({"prompt": [1] * 1025}, "prompt"), ({"prompt": "word " * 200_000}, "prompt"),
        ({"prompt": ["a", "word " * 200_000]}, "prompt"), ({"prompt": [[1], [1] * 1025]}, "prompt"),
        ({"prompt": [[1]] * 65, "n": 2}, "prompt"), ({"prompt": [[1]] * 100_000}, "prompt"),
        ({"prompt": ["a"] * 129}, "prompt"), ({"prompt": ["a", 1]}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1022}, "prompt"), ({"max_tokens": 2**40}, "max_tokens"),
        ({"max_tokens": "2"}, "max_tokens"), ({"max_tokens": 2.5}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"), ({"min_tokens": 3}, "min_tokens"),
        ({"min_tokens": -1}, "min_tokens"), ({"temperature": -0.1}, "temperature"),
        ({"temperature": 1e300}, "temperature"), ({"top_p": 0}, "top_p"), ({"top_p": 1.1}, "top_p"),
        ({"top_k": 2**40}, "top_k"), ({"n": 0}, "n"), ({"n": 129}, "n"), ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"), ({"stop": [f"s{i}" for i in range(65)]}, "stop"),
        ({"stop": ["a", "é" * 257]}, "stop"), ({"stop": [1]}, "stop"), ({"stream": "yes"}, "stream"),
        ({"stream_options": []}, "stream_options"), ({"stream_options": {}}, "stream_options"),
        ({"stream_options": {"include_usage": True}, "stream": False}, "stream_options"),
        ({"stream_options": {"include_usgae": True}, "stream": True}, "stream_options"),
        ({"logprobs": 21}, "logprobs"), ({"logprobs": -1}, "logprobs"), ({"logprobs": True}, "logprobs"),
        ({"logprobs": 20, "n": 128, "max_tokens": 391}, "logprobs"), ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"), ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 3, "n": 2}, "best_of"), ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"), ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"), ({"logit_bias": {str(TEXT_VOCAB): 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 1e-40}, "repetition_penalty"),
        ({"repetition_penalty": 101}, "repetition_penalty"), ({"min_p": -0.1}, "min_p"),
        ({"min_p": 1.1}, "min_p"), ({"top_k": -5}, "top_k"),
        ({"stop_token_ids": [TEXT_VOCAB]}, "stop_token_ids"), ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": [5] * 65}, "stop_token_ids"), ({"guided_json": {}}, "guided_json"),
        ({"bad_words": ["a"]}, "bad_words"), ({"allowed_token_ids": [1]}, "allowed_token_ids"),
        ({"use_beam_search": True}, "use_beam_search"), ({"repetition_penalti": 1.1}, "repetition_penalti"),
    ],
)  # fmt: skip
def test_bad_parameters(serving: Any, change: dict[str, Any], param: str | None) -> None:
    error = check_error(serving.request("/v1/completions", OK | change), 400)
    assert error["param"] == param
    assert param != "max_completion_tokens" or error["message"].startswith(param)


def test_a_chat_of_more_tokens_than_the_context_has(chatting: Any) -> None:
    """Without `max_tokens`, which is the rest of the context then."""
    body = {"messages": [{"role": "user", "content": "a"}], "min_tokens": 100_000}
    assert check_error(chatting.request("/v1/chat/completions", body), 400)["param"] == "min_tokens"
    assert chatting.request("/health").status == 200


def test_a_field_that_is_missing_is_named(serving: Any) -> None:
    for path, field in (("completions", "prompt"), ("chat/completions", "messages")):
        assert check_error(serving.request(f"/v1/{path}", {"max_tokens": 2}), 400)["param"] == field


@pytest.mark.parametrize(
    ("path", "method", "body", "status"),
    [
        ("/v1/completions", "POST", OK | {"model": "other"}, 404),
        ("/v1/nothing", "GET", None, 404),
        ("/v1/completions", "GET", None, 405),
        ("/v1/completions", "DELETE", None, 405),
        ("/health", "POST", {}, 405),
    ],
)
def test_wrong_model_route_or_method(serving: Any, path: str, method: str, body: Any, status: int) -> None:
    reply = serving.request(path, body, method)
    check_error(reply, status)
    assert status != 405 or "allow" in reply.headers


def test_a_path_without_v1_is_told_the_one_with_it(serving: Any) -> None:
    error = check_error(serving.request("/completions", OK), 404)
    assert error["message"] == "there is no /completions; it is /v1/completions"
    assert check_error(serving.request("/complete", OK), 404)["message"] == "there is no /complete"


def test_what_changes_nothing_is_taken(serving: Any) -> None:
    """Null, and neutral values of what is not supported."""
    neutral = {
        "repetition_penalty": 1.0, "min_p": 0, "stop_token_ids": [], "logit_bias": {}, "top_k": -1,
        "best_of": 1, "suffix": "", "user": "me", "length_penalty": 1.0, "skip_special_tokens": True,
        "chat_template_kwargs": {},
    }  # fmt: skip
    plain = serving.request("/v1/completions", OK | {"temperature": 0}).json["choices"]
    same = serving.request("/v1/completions", OK | {"temperature": 0} | neutral)
    assert same.status == 200 and same.json["choices"] == plain
    document = serving.request("/openapi.json").json
    fields = document["components"]["schemas"]["CompletionRequest"]["properties"].keys() - {"prompt"}
    nulls = dict.fromkeys(fields) | {"temperature": 0, "max_tokens": 2}
    same = serving.request("/v1/completions", OK | nulls)
    assert len(nulls) > 40 and same.status == 200 and same.json["choices"] == plain
    body = OK | {"n": 3, "seed": 7}
    three = serving.request("/v1/completions", body | {"best_of": 3})  # as many as are returned
    assert three.json["choices"] == serving.request("/v1/completions", body).json["choices"]


def test_a_prompt_that_is_too_long(serving: Any) -> None:
    """Clients that shorten a prompt look for this code and message."""
    for prompt in ([1] * 1023, [1] * 1025, "word " * 2000, "word " * 200_000):
        error = check_error(serving.request("/v1/completions", OK | {"prompt": prompt}), 400)
        assert error["code"] == "context_length_exceeded"
        assert error["message"].startswith("This model's maximum context length is 1024 tokens.")


def test_one_model(serving: Any) -> None:
    listed = serving.request("/v1/models").json["data"]
    for written in ("tiny", "t%69ny"):  # clients quote names, as of `org/model`
        assert serving.request(f"/v1/models/{written}").json == listed[0]
    error = check_error(serving.request("/v1/models/an%2Fother"), 404)
    body = OK | {"model": "an/other"}
    assert error == check_error(serving.request("/v1/completions", body), 404)
    assert error["code"] == "model_not_found"


def test_body_too_large(serving: Any) -> None:
    """Refused as soon as the limit is passed, while the client still sends."""
    body = b'{"prompt": "' + b"a" * (33 << 20)
    with connect(serving, HEAD % (len(body) + 99) + body) as client:
        response = http.client.HTTPResponse(client)
        response.begin()
        assert response.status == 413
        assert json.loads(response.read())["error"]["type"] == "invalid_request_error"


KEY: dict[str, Any] = {"authorization": "Bearer sécret".encode()}


def test_key_and_limit(serve: Any, fake: Any) -> None:
    """401 without the key; 429 with Retry-After above the limit, which every answer counts for; room again
    afterwards."""
    options = ("--frontend-processes", "1", "--max-inflight-requests", "2", "--served-model-name", "tiny")
    fake["environment"]["ROSEINFER_API_KEY"] = "sécret"
    server, key, body = serve(*options, **fake), KEY, OK | {"ignore_eos": True}
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": b"\xff\xfe"}):
        for path, sent in (("/v1/completions", body), ("/v1/models", None), ("/server_info", None)):
            error = check_error(server.request(path, sent, headers=headers), 401)
            assert error["type"] == "authentication_error"
    assert server.request("/health").status == 200

    def client(index: int) -> Any:
        return server.request("/v1/completions", body | {"max_tokens": 200, "prompt": [index]}, headers=key)

    with ThreadPoolExecutor(12) as pool:
        replies = list(pool.map(client, range(12)))
    refused = [reply for reply in replies if reply.status != 200]
    assert 1 <= len(refused) <= 10
    for reply in refused:
        assert check_error(reply, 429)["type"] == "rate_limit_error"
        assert int(reply.headers["retry-after"]) >= 1
    assert client(1).status == 200
    assert check_error(server.request("/v1/completions", body | {"n": 3}, headers=key), 400)["param"] == "n"

    long = json.dumps(body | {"max_tokens": 900, "stream": True}).encode()
    with connect(server, with_key(long) + long) as busy:
        assert busy.recv(16).startswith(b"HTTP/1.1 200 OK")
        for change in ({"n": 2}, {"prompt": [[1], [2]]}, {"prompt": ["word " * 100] * 2}):
            check_error(server.request("/v1/completions", OK | change, headers=key), 429)
        assert server.complete([1], max_tokens=1, headers=key).status == 200
    check_error(server.complete("word " * 100_000, headers=key), 400)
    for prompt in ([1, 2, 3], "word"):
        assert server.becomes_idle(headers=KEY)
        statuses = statuses_together(server, prompt)
        assert statuses == {b"200": 2, b"429": 4}, "all are parsed before one is tokenized"


def with_key(body: bytes) -> bytes:
    """The head of a request."""
    return (HEAD % len(body)).replace(b"\r\n\r\n", b"\r\nauthorization: Bearer s\xc3\xa9cret\r\n\r\n")


def statuses_together(server: Any, prompt: Any) -> Counter[bytes]:
    """Return the statuses of six requests that the server reads at once."""
    body = json.dumps({"prompt": prompt, "max_tokens": 200, "ignore_eos": True}).encode()
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(server)) for _ in range(6)]
        assert server.request("/health").status == 200  # the connections before are accepted
        server.process.send_signal(signal.SIGSTOP)
        for client in clients:
            client.sendall(with_key(body) + body)
        server.process.send_signal(signal.SIGCONT)
        return Counter(client.recv(12)[-3:] for client in clients)


COMPLETION = {
    "model": None, "prompt": [1, 2, 3], "max_tokens": 2, "min_tokens": 0, "temperature": 0.5, "top_p": 0.9,
    "top_k": 5,
    "seed": 1, "n": 2, "stop": ["a", "b"], "ignore_eos": True, "stream": True,
    "stream_options": {"include_usage": True},
    "logprobs": 2, "return_token_ids": True, "return_metrics": True, "presence_penalty": 0.0,
    "logit_bias": None, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "min_p": 0.0, "best_of": None,
    "echo": False, "suffix": None, "user": "somebody", "stop_token_ids": [], "add_special_tokens": True,
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
        None, True, False, 0, -1, 1, 0.5, -0.0, 2**31, 2**63, 2**64, -(2**63), 10**400, 1e-40, 1e308, "", "a",
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


@settings(max_examples=75, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_body_breaks_the_server(serving: Any, data: st.DataObject) -> None:
    reply = serving.request("/v1/completions", change(data, COMPLETION))
    if reply.status == 200:
        assert not [chunk for chunk in reply.chunks if "error" in chunk]
    else:
        assert 400 <= reply.status < 500
        check_error(reply, reply.status)


def test_alive_and_idle_after_all_that(serving: Any) -> None:
    assert serving.request("/health").status == 200
    assert serving.becomes_idle()
    assert not serving.faults


CHECKS = [
    not_a_server_error, content_type_conformance, response_schema_conformance, negative_data_rejection,
]  # fmt: skip
ROUTES = [
    ("POST", "/v1/completions"), ("POST", "/v1/chat/completions"), ("GET", "/v1/models"),
    ("GET", "/v1/models/tiny"), ("GET", "/health"), ("GET", "/live"), ("GET", "/livez"), ("GET", "/ready"),
    ("GET", "/readyz"), ("GET", "/server_info"), ("GET", "/metrics"), ("GET", "/integrity"),
    ("GET", "/openapi.json"), ("POST", "/flush_cache"), ("POST", "/stop_profile"),
]  # fmt: skip


def test_every_route_is_described(serving: Any) -> None:
    document = serving.request("/openapi.json").json
    described = [(method.upper(), path) for path, methods in document["paths"].items() for method in methods]
    # /start_profile slows the server down, and is not fuzzed
    assert sorted(described) == sorted([*ROUTES, ("POST", "/start_profile")])
    assert all(next(iter(methods.values()))["summary"] for methods in document["paths"].values())
    body = document["components"]["schemas"]["CompletionRequest"]
    fields = body["properties"]
    assert body["required"] == ["prompt"] and {"max_tokens", "stop", "stream"} < fields.keys()
    stated = {name: fields[name]["anyOf"][0] for name in ("n", "logprobs", "stop", "min_p", "stop_token_ids")}
    bounds = [value for name in stated for key, value in stated[name].items() if key.startswith("max")]
    assert bounds == [128, 20, 256, 1, 64]


def schema_check(server: Any, path: str) -> Callable[[st.DataObject], None]:
    """A request, valid or broken: no 5xx; an answer has the kind that the document says, a refusal is
    OpenAI's error object; a request against the document is refused."""
    operation = openapi.from_dict(server.request("/openapi.json").json)[path]["POST"]

    def check(data: st.DataObject) -> None:
        case: Case[Any] = data.draw(st.sampled_from(GenerationMode).flatmap(operation.as_strategy))
        case.call_and_validate(
            base_url=f"http://127.0.0.1:{server.port}", checks=CHECKS, timeout=30, headers=server.headers
        )

    return check


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_no_request_breaks_the_server(serving: Any, chatting: Any, path: str) -> None:
    server = chatting if "chat" in path else serving
    earlier_faults = len(server.faults)  # of other tests of this server
    limited = settings(max_examples=8, suppress_health_check=list(HealthCheck))
    limited(given(data=st.data())(schema_check(server, path)))()
    assert server.becomes_idle()
    assert not server.faults[earlier_faults:]
