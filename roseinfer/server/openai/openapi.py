"""The server's OpenAPI document, generated from its routes and the types of their bodies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from roseinfer import __version__
from roseinfer.server.openai.requests import ChatRequest, CompletionRequest, ProfileRequest
from roseinfer.server.openai.responses import ErrorBody

#: The body of each route that takes one.
BODIES: dict[str, type[msgspec.Struct]] = {
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatRequest,
    "/start_profile": ProfileRequest,
}
_STREAMING = (CompletionRequest, ChatRequest)


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The body of every error."""

    error: ErrorBody


def openapi(routes: Mapping[str, tuple[str, Callable[..., Any]]]) -> bytes:
    """Generate OpenAPI 3.1 for `routes`: path to method and handler, whose docstring's first line is the
    summary."""
    kinds = [*BODIES.values(), ErrorAnswer]
    references, models = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    schemas = dict(zip(kinds, references, strict=True))
    paths = {
        path: {method.lower(): _operation(handler, BODIES.get(path), schemas)}
        for path, (method, handler) in routes.items()
    }
    info = {"title": "roseinfer", "version": __version__}
    document = {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": models}}
    return msgspec.json.encode(document)


def _operation(
    handler: Callable[..., Any], body: type[msgspec.Struct] | None, schemas: Mapping[Any, dict[str, Any]]
) -> dict[str, Any]:
    summary, _, _ = (handler.__doc__ or "").partition("\n")
    kinds = ["application/json", *(["text/event-stream"] if body in _STREAMING else [])]
    success: dict[str, Any] = {"description": "Done."}
    if body is not None and body in _STREAMING:
        success["content"] = {kind: {} for kind in kinds}
    error = {"description": "Refused.", "content": {"application/json": {"schema": schemas[ErrorAnswer]}}}
    operation: dict[str, Any] = {"summary": summary, "responses": {"200": success, "default": error}}
    if body is not None:
        content = {"application/json": {"schema": schemas[body]}}
        required = any(field.required for field in msgspec.structs.fields(body))
        operation["requestBody"] = {"required": required, "content": content}
    return operation
