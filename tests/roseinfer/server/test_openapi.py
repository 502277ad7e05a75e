"""Requests made from the server's own OpenAPI document, valid ones and broken ones, by schemathesis."""

from __future__ import annotations

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
    ("POST", "/v1/completions"), ("POST", "/v1/chat/completions"), ("GET", "/v1/models"),
    ("GET", "/health"), ("GET", "/server_info"), ("GET", "/metrics"), ("GET", "/integrity"),
    ("GET", "/openapi.json"), ("POST", "/flush_cache"), ("POST", "/stop_profile"),
]  # fmt: skip


@pytest.fixture(scope="module")
def document(serving: Any) -> Any:
    return serving.request("/openapi.json").json


def test_every_route_is_described(document: Any) -> None:
    found = [(method.upper(), path) for path, methods in document["paths"].items() for method in methods]
    # /start_profile writes files where it is told to
    assert sorted(found) == sorted([*ROUTES, ("POST", "/start_profile")])
    assert all(next(iter(methods.values()))["summary"] for methods in document["paths"].values())
    body = document["components"]["schemas"]["CompletionRequest"]
    assert body["required"] == ["prompt"] and {"max_tokens", "stop", "stream"} < body["properties"].keys()


@pytest.mark.parametrize("mode", GenerationMode)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_no_body_breaks_the_server(serving: Any, document: Any, path: str, mode: GenerationMode) -> None:
    """No 5xx; an answer has the kind that the document says, a refusal is OpenAI's error object; what is
    against the document is refused."""
    operation = openapi.from_dict(document)[path]["POST"]

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        case: Case = data.draw(operation.as_strategy(mode))
        case.call_and_validate(base_url=f"http://127.0.0.1:{serving.port}", checks=CHECKS, timeout=30)

    holds()


def test_alive_and_idle_after_all_that(serving: Any) -> None:
    assert serving.becomes_idle()
    assert not [line for line in serving.log if "Traceback" in line or "ERROR" in line]
