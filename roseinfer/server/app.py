"""The routes of the HTTP server, and the OpenAPI document that is generated from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec

from roseinfer import __version__
from roseinfer.ipc.messages import CheckBlocks, StartProfile, StopProfile
from roseinfer.server.access import Access, QueueLimits
from roseinfer.server.http.connection import Connection
from roseinfer.server.http.errors import BadRequestError, HttpError
from roseinfer.server.http.parser import HttpRequest
from roseinfer.server.http.response import Answer, Response
from roseinfer.server.metrics.counters import Counters
from roseinfer.server.metrics.exposition import CONTENT_TYPE, exposition
from roseinfer.server.openai.completion import Backend
from roseinfer.server.openai.requests import ChatRequest, CompletionRequest, ProfileRequest, parse
from roseinfer.server.openai.responses import ErrorBody
from roseinfer.server.openai.submission import Submission
from roseinfer.server.replicas import together

#: Routes that need no key: liveness probes, then readiness probes.
OPEN = ("/health", "/live", "/livez", "/ready", "/readyz")

#: The body of each route that takes one.
_BODIES: dict[str, type[msgspec.Struct]] = {
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatRequest,
    "/start_profile": ProfileRequest,
}
_STREAMING = (CompletionRequest, ChatRequest)

Route = Callable[[HttpRequest, Connection], Answer]


class App:
    """Routes requests; `submission` answers completions and chats. `created`: when the server was started
    (s since the epoch)."""

    def __init__(
        self,
        backend: Backend,
        counters: Counters,
        access: Access,
        queue: QueueLimits,
        submission: Submission,
        profile_dir: str | None,
        created: int,
    ) -> None:
        self._backend, self._counters, self._submission = backend, counters, submission
        self._access, self._queue, self._created = access, queue, created
        self._profile_dir = None if profile_dir is None else Path(profile_dir).resolve()
        self.stopping = False
        self._routes: dict[str, tuple[str, Route]] = {
            **dict.fromkeys(OPEN[:3], ("GET", self._live)),
            **dict.fromkeys(OPEN[3:], ("GET", self._ready)),
            "/openapi.json": ("GET", self._openapi),
            "/server_info": ("GET", self._server_info),
            "/v1/models": ("GET", self._models),
            f"/v1/models/{backend.model}": ("GET", self._model),
            "/metrics": ("GET", self._metrics),
            "/flush_cache": ("POST", self._flush_cache),
            "/integrity": ("GET", self._integrity),
            "/start_profile": ("POST", self._start_profile),
            "/stop_profile": ("POST", self._stop_profile),
            "/v1/completions": ("POST", self._completions),
            "/v1/chat/completions": ("POST", self._chat),
        }

    @cached_property
    def _document(self) -> bytes:
        return _openapi(self._routes)

    def admit(self, request: HttpRequest) -> HttpError | None:
        """Return the error for a request that is refused by its head alone, else None. The key is checked
        first, so clients without one learn nothing else."""
        if request.path not in OPEN and (
            error := self._access.check_key(request) or self._access.check_host(request)
        ):
            return error
        path = unquote(request.path)
        method, _ = self._routes.get(path, ("", None))
        if not method and path.startswith("/v1/models/"):
            return self._backend.other_model(path.removeprefix("/v1/models/"))
        if not method:
            hint = f"; it is /v1{path}" if f"/v1{path}" in self._routes else ""
            return HttpError(404, f"there is no {request.path[:100]}{hint}")
        allowed = ("GET", "HEAD") if method == "GET" else (method,)
        if request.method not in allowed:
            return HttpError(405, f"{request.path} takes {method}", headers={"allow": ", ".join(allowed)})
        kind = request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        # a page of another site cannot send this type unasked, nor a POST without a header of the browser's
        if method == "POST" and kind != b"application/json" and not _is_bare(request):
            return HttpError(415, "the content-type must be application/json")
        return None

    def handle(self, request: HttpRequest, connection: Connection) -> Answer:
        """Answer an admitted request; None if a producer makes the response. Raises HttpError."""
        return self._routes[unquote(request.path)][1](request, connection)

    def _live(self, request: HttpRequest, connection: Connection) -> Response:
        """Liveness: whether the engine runs, and responds while it has work."""
        return Response(200 if self._lives else 503)

    def _ready(self, request: HttpRequest, connection: Connection) -> Response:
        """Readiness: whether the server is alive, has room for requests and is not stopping."""
        return Response(200 if self._lives and not self.stopping and not self._queue.full else 503)

    @property
    def _lives(self) -> bool:
        return self._backend.engine.alive and not self._backend.engine.silent

    def _openapi(self, request: HttpRequest, connection: Connection) -> Response:
        """This OpenAPI document."""
        return Response(200, self._document)

    def _models(self, request: HttpRequest, connection: Connection) -> Response:
        """The one model that is served, in a list."""
        return Response(200, msgspec.json.encode({"object": "list", "data": [self._card()]}))

    def _model(self, request: HttpRequest, connection: Connection) -> Response:
        """The model alone."""
        return Response(200, msgspec.json.encode(self._card()))

    def _card(self) -> dict[str, object]:
        return {
            "id": self._backend.model,
            "object": "model",
            "created": self._created,
            "owned_by": "roseinfer",
            "max_model_len": self._backend.engine.info.limits.max_model_len,
        }

    async def _server_info(self, request: HttpRequest, connection: Connection) -> Response:
        """The engine's settings, and the current load of all replicas together."""
        loads = await self._backend.engine.loads()
        info = {
            "version": __version__,
            "model": self._backend.model,
            "settings": self._backend.engine.info.settings(),
            "http_processes": len(self._counters.closed()),
            "data_parallel_size": len(loads),
            "load": msgspec.structs.asdict(together(loads)) | {"inflight": self._counters.inflight},
        }
        return Response(200, msgspec.json.encode(info))

    async def _metrics(self, request: HttpRequest, connection: Connection) -> Response:
        """Prometheus metrics, summed over all front ends, and for each replica if there are several."""
        loads = await self._backend.engine.loads()
        return Response(200, exposition(self._counters, loads, self._backend.engine.info), CONTENT_TYPE)

    async def _flush_cache(self, request: HttpRequest, connection: Connection) -> Response:
        """Empty the prefix cache. Answers in flight are not affected."""
        await self._backend.engine.flush()
        return Response(200)

    async def _integrity(self, request: HttpRequest, connection: Connection) -> Response:
        """Check that every block of the KV cache is free; 409 if not, or while requests are in flight."""
        answer = await self._backend.engine.order(CheckBlocks())
        if answer.error is not None:
            raise HttpError(409, answer.error)
        return Response(200)

    async def _start_profile(self, request: HttpRequest, connection: Connection) -> Response:
        """Start a torch profile of the engine process; see ProfileRequest."""
        root = self._profile_dir
        if root is None:
            raise HttpError(403, "profiles are off; --profile-dir turns them on")
        profile = parse(request.take_body() or b"{}", ProfileRequest)
        if not profile.output_dir.isprintable():
            raise BadRequestError("output_dir has characters that cannot be printed", "output_dir")
        try:
            folder = (root / profile.output_dir).resolve()
        except (OSError, ValueError) as error:  # ValueError: a NUL
            raise BadRequestError(f"output_dir {profile.output_dir!r}: {error}", "output_dir") from None
        if not folder.is_relative_to(root):
            raise BadRequestError(f"output_dir must be within {root}", "output_dir")
        return await self._profile(StartProfile(str(folder), profile.num_steps, profile.with_stack))

    async def _stop_profile(self, request: HttpRequest, connection: Connection) -> Response:
        """End the profile; the trace is written when this answers."""
        return await self._profile(StopProfile())

    async def _profile(self, order: StartProfile | StopProfile) -> Response:
        answer = await self._backend.engine.order(order)
        if answer.error is not None:
            raise BadRequestError(answer.error)
        return Response(200)

    def _completions(self, request: HttpRequest, connection: Connection) -> Answer:
        """Complete prompts, which are texts or token ids."""
        return self._submission.answer(request, connection, chat=False)

    def _chat(self, request: HttpRequest, connection: Connection) -> Answer:
        """Generate the next message of a conversation."""
        return self._submission.answer(request, connection, chat=True)


def _is_bare(request: HttpRequest) -> bool:
    """Return whether a request has neither a body nor a word of a browser, as `curl -X POST` sends it."""
    headers = request.headers
    no_body = headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers
    return no_body and not headers.keys() & {b"content-type", b"origin", b"sec-fetch-site"}


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The body of every error."""

    error: ErrorBody


def _openapi(routes: Mapping[str, tuple[str, Callable[..., Any]]]) -> bytes:
    """Generate OpenAPI 3.1 for `routes`: path to method and handler, whose docstring's first line is the
    summary."""
    kinds = [*_BODIES.values(), ErrorAnswer]
    references, models = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    schemas = dict(zip(kinds, references, strict=True))
    paths = {
        path: {method.lower(): _operation(handler, _BODIES.get(path), schemas)}
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
