"""Requests that a server refuses: status, OpenAI's error object, and a server that still serves."""

from __future__ import annotations

import http.client
import json
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
    assert error["message"] and error["code"] in codes.get(status, {None, "model_not_found"})
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
        ({"max_tokens": 1022}, "prompt"),
        ({"max_tokens": 2**40}, "max_tokens"), ({"max_tokens": "2"}, "max_tokens"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"min_tokens": 3}, "min_tokens"), ({"min_tokens": -1}, "min_tokens"),
        ({"temperature": -0.1}, "temperature"), ({"temperature": 1e300}, "temperature"),
        ({"top_p": 0}, "top_p"), ({"top_p": 1.1}, "top_p"), ({"top_k": 2**40}, "top_k"),
        ({"n": 0}, "n"), ({"n": 129}, "n"), ({"stop": ""}, "stop"), ({"stop": ["a", ""]}, "stop"),
        ({"stop": [f"s{i}" for i in range(65)]}, "stop"), ({"stop": ["a", "é" * 257]}, "stop"),
        ({"stop": [1]}, "stop"), ({"stream": "yes"}, "stream"),
        ({"stream_options": []}, "stream_options"), ({"stream_options": {}}, "stream_options"),
        ({"stream_options": {"include_usage": True}, "stream": False}, "stream_options"),
        ({"logprobs": 21}, "logprobs"), ({"logprobs": -1}, "logprobs"), ({"logprobs": True}, "logprobs"),
        ({"logprobs": 20, "n": 128, "max_tokens": 391}, "logprobs"),
        ({"suffix": "x"}, "suffix"), ({"best_of": 2}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"), ({"best_of": 3, "n": 2}, "best_of"),
        ({"presence_penalty": 2.1}, "presence_penalty"), ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"logit_bias": {"a": 1}}, "logit_bias"), ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {str(TEXT_VOCAB): 1}}, "logit_bias"), ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 1e-40}, "repetition_penalty"),
        ({"repetition_penalty": 101}, "repetition_penalty"),
        ({"min_p": -0.1}, "min_p"), ({"min_p": 1.1}, "min_p"), ({"top_k": -5}, "top_k"),
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


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
FIELDS = [
    "prompt", "model", "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "seed", "n", "stop",
    "ignore_eos", "stream", "stream_options", "return_token_ids", "return_metrics", "echo", "suffix",
    "logprobs", "best_of", "presence_penalty", "frequency_penalty", "logit_bias", "user", "min_p",
    "repetition_penalty", "stop_token_ids", "add_special_tokens",
]  # fmt: skip
VALUES = JSON | st.sampled_from([0, 1, 2, -1, 0.5, 1e-40, 1e308, 2**31, 2**63, 2**64, True, "a", [[1], [2]]])
BODIES = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4).map(
    lambda change: json.dumps(OK | {"max_tokens": 2} | change).encode()
)


BYTES = st.binary(max_size=20)


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(body=BODIES | BYTES | BYTES.map(lambda raw: b'{"max_tokens": 2, "prompt": "a' + raw + b'"}'))
def test_no_body_breaks_the_server(serving: Any, body: bytes) -> None:
    reply = serving.request("/v1/completions", body)
    if reply.status == 200:
        assert not [chunk for chunk in reply.chunks if "error" in chunk]
    else:
        assert 400 <= reply.status < 500
        check_error(reply, reply.status)


def test_alive_and_idle_after_all_that(serving: Any) -> None:
    assert serving.request("/health").status == 200
    assert serving.becomes_idle()
    assert not serving.faults
