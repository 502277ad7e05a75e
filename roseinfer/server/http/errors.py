"""Whole responses, and errors in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

_KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


@dataclass(frozen=True)
class Response:
    """A response that is complete."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


class ErrorBody(msgspec.Struct, frozen=True):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None = None
    code: int | str | None = None


def error_body(status: int, message: str, param: str | None = None) -> bytes:
    """The JSON body of an error response."""
    kind = _KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return msgspec.json.encode({"error": ErrorBody(message, kind, param, status)})


class HttpError(Exception):
    """A request that is answered with an error; `param` says which field is wrong."""

    def __init__(
        self, status: int, message: str, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.headers = status, param, headers or {}

    @property
    def body(self) -> bytes:
        return error_body(self.status, str(self), self.param)

    def response(self) -> Response:
        return Response(self.status, self.body, headers=self.headers)


class BadRequestError(HttpError):
    """Refused with 400; the message says why, `param` where."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(400, message, param)


class InternalError(HttpError):
    """What should not have happened; the log has it."""

    def __init__(self) -> None:
        super().__init__(500, "internal error; the server's log says more")


class EngineDeadError(HttpError):
    """The engine process is gone."""

    def __init__(self) -> None:
        super().__init__(503, "the engine has stopped")
