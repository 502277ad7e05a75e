"""Errors in OpenAI's format."""

from __future__ import annotations

import msgspec

from roseinfer.server.http.errors import HttpError
from roseinfer.server.http.response import Response

#: The `code` of an error by its status, where there is no other.
_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}
_KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class ErrorBody(msgspec.Struct, frozen=True):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


def error_body(error: HttpError) -> bytes:
    """JSON, for a response or an event of a stream."""
    kind = _KINDS.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    code = error.code or _CODES.get(error.status)
    return msgspec.json.encode({"error": ErrorBody(str(error), kind, error.param, code)})


def error_response(error: HttpError) -> Response:
    """The whole response."""
    return Response(error.status, error_body(error), headers=error.headers)
