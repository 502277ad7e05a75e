"""Errors that end a request with a status; how their bodies are written is for those who know the API."""

from __future__ import annotations

from collections.abc import Mapping


class HttpError(Exception):
    """A request that is answered with an error; `param` says which field is wrong, `code` in one of OpenAI's
    words what with it."""

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
    """Refused with 400; the message says why, `param` where."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(400, message, param, code)


class InternalError(HttpError):
    """What should not have happened; the log has it."""

    def __init__(self) -> None:
        super().__init__(500, "internal error; the server's log says more")


class EngineDeadError(HttpError):
    """The engine process is gone."""

    def __init__(self) -> None:
        super().__init__(503, "the engine has stopped")


class SilentEngineError(HttpError):
    """The engine process is there and does not answer."""

    def __init__(self) -> None:
        super().__init__(503, "the engine does not answer", headers={"retry-after": "1"})
