"""Errors that end a request with a status. Their bodies depend on the API and are written elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

#: The header of a refusal: seconds after which the client may retry.
RETRY_AFTER = {"retry-after": "1"}


class HttpError(Exception):
    """A request is answered with an error. `param`: the field that is wrong; `code`: OpenAI's error code."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.headers = status, param, code, headers or {}


class BadRequestError(HttpError):
    """Refused with 400; the message says why, `param` which field."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(400, message, param, code)


class InternalError(HttpError):
    """An unexpected error, which is in the log."""

    def __init__(self) -> None:
        super().__init__(500, "internal error; the server's log says more")


class EngineDeadError(HttpError):
    """The engine process is gone."""

    def __init__(self) -> None:
        super().__init__(503, "the engine has stopped")


class SilentEngineError(HttpError):
    """The engine process runs but does not respond."""

    def __init__(self) -> None:
        super().__init__(503, "the engine does not answer", headers=RETRY_AFTER)
