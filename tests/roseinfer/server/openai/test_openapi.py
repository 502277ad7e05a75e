"""Requests made from the server's own OpenAPI document, valid ones and broken ones, by schemathesis."""

from __future__ import annotations

from collections.abc import Callable
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

CHECKS = [
    not_a_server_error, content_type_conformance, response_schema_conformance, negative_data_rejection,
]  # fmt: skip
ROUTES = [
    ("POST", "/v1/completions"), ("POST", "/v1/chat/completions"),
    ("GET", "/v1/models"), ("GET", "/v1/models/tiny"),
    ("GET", "/health"), ("GET", "/live"), ("GET", "/livez"), ("GET", "/ready"), ("GET", "/readyz"),
    ("GET", "/server_info"), ("GET", "/metrics"), ("GET", "/integrity"),
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
