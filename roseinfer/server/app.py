"""Routes, errors, and the life of the server."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import time
from collections.abc import Awaitable, Callable

import msgspec
import numpy as np
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from roseinfer import __version__
from roseinfer.ipc.messages import StartProfile, StopProfile
from roseinfer.params import RequestError, check_request
from roseinfer.server import protocol
from roseinfer.server.answers import Answers
from roseinfer.server.engine_client import EngineClient, EngineDeadError
from roseinfer.server.protocol import BadRequestError, CompletionRequest, ProfileRequest, Work, error_body
from roseinfer.tokenizer.tokenizer import Tokenizer

MAX_BODY_BYTES = 32 << 20
JSON = "application/json"


class Server:
    """The ASGI application around one engine client."""

    def __init__(
        self,
        engine: EngineClient,
        tokenizer: Tokenizer | None,
        *,
        model: str,
        api_key: str | None = None,
        max_inflight: int | None = None,
    ) -> None:
        self._engine, self._tokenizer, self._model = engine, tokenizer, model
        self._api_key, self._max_inflight = api_key, max_inflight
        self._created = int(time.time())
        self.app: ASGIApp = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/server_info", self._server_info),
                Route("/v1/models", self._models),
                Route("/start_profile", self._start_profile, methods=["POST"]),
                Route("/stop_profile", self._stop_profile, methods=["POST"]),
                Route("/v1/completions", self._completions, methods=["POST"]),
            ],
            exception_handlers={HTTPException: _http_error, Exception: _server_error},
        )

    async def _health(self, request: Request) -> Response:
        return Response(status_code=200 if self._engine.alive else 503)

    async def _models(self, request: Request) -> Response:
        self._authorize(request)
        card = {
            "id": self._model,
            "object": "model",
            "created": self._created,
            "owned_by": "roseinfer",
            "max_model_len": self._engine.info.max_model_len,
        }
        return Response(msgspec.json.encode({"object": "list", "data": [card]}), media_type=JSON)

    async def _server_info(self, request: Request) -> Response:
        """What the engine runs with, and what it holds now."""
        self._authorize(request)
        try:
            load = await self._engine.load()
        except EngineDeadError:
            raise HTTPException(503, "the engine has stopped") from None
        info = {
            "version": __version__,
            "model": self._model,
            "settings": self._engine.info,
            "load": msgspec.structs.asdict(load) | {"inflight": self._engine.num_inflight},
        }
        return Response(msgspec.json.encode(info), media_type=JSON)

    async def _start_profile(self, request: Request) -> Response:
        """Begin a torch profile of the engine process; see ProfileRequest."""
        self._authorize(request)
        try:
            asked = msgspec.json.decode(await _body(request), type=ProfileRequest)
        except msgspec.MsgspecError as error:
            return Response(error_body(400, str(error)), 400, media_type=JSON)
        return await self._profile(StartProfile(asked.output_dir, asked.num_steps, asked.with_stack))

    async def _stop_profile(self, request: Request) -> Response:
        """End it; the trace is written when this answers."""
        self._authorize(request)
        return await self._profile(StopProfile())

    async def _profile(self, order: StartProfile | StopProfile) -> Response:
        try:
            done = await self._engine.profile(order)
        except EngineDeadError:
            raise HTTPException(503, "the engine has stopped") from None
        if done.error is not None:
            return Response(error_body(400, done.error), 400, media_type=JSON)
        return Response()

    async def _completions(self, request: Request) -> ASGIApp:
        self._authorize(request)
        try:
            body = protocol.parse(await _body(request))
            if body.model not in (None, self._model):
                raise HTTPException(404, f"the model {body.model!r} does not exist; this is {self._model!r}")
            answers = await self._submit(body, protocol.check(body))
        except BadRequestError as error:
            return Response(error_body(400, str(error), error.param), 400, media_type=JSON)
        except EngineDeadError:
            raise HTTPException(503, "the engine has stopped") from None
        return _Stream(answers) if body.stream else _Whole(answers)

    def _authorize(self, request: Request) -> None:
        if self._api_key is not None:
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode("latin-1"), self._api_key.encode()):
                raise HTTPException(401, "the API key is missing or wrong")

    async def _submit(self, body: CompletionRequest, work: Work) -> Answers:
        prompts = [await self._token_ids(prompt) for prompt in work.prompts]
        for prompt in prompts:
            try:
                check_request(self._engine.info, prompt, work.params)
            except RequestError as error:
                raise BadRequestError(str(error), "prompt") from None
        if self._max_inflight is not None and self._engine.num_inflight >= self._max_inflight:
            raise HTTPException(429, "too many requests in flight", {"Retry-After": "1"})
        return Answers(self._engine, self._tokenizer, body, work, prompts, self._model)

    async def _token_ids(self, prompt: str | NDArray[np.int32]) -> NDArray[np.int32]:
        if not isinstance(prompt, str):
            return prompt
        if self._tokenizer is None:
            raise BadRequestError("the model has no tokenizer; send token ids", "prompt")
        return await asyncio.to_thread(self._tokenizer.encode, prompt)


class _Whole:
    """The answers in one JSON body; given up when the client goes away."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def respond() -> None:
            try:
                response = Response(msgspec.json.encode(await self._answers.whole()), media_type=JSON)
            except EngineDeadError:
                response = Response(error_body(503, "the engine has stopped"), 503, media_type=JSON)
            await response(scope, receive, send)

        await _until_disconnect(receive, respond, self._answers)


class _Stream:
    """The answers as server-sent events; given up when the client goes away."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        encode = msgspec.json.Encoder().encode

        async def event(data: bytes) -> None:
            body = b"data: " + data + b"\n\n"
            await send({"type": "http.response.body", "body": body, "more_body": True})

        async def respond() -> None:
            headers = [
                (b"content-type", b"text/event-stream; charset=utf-8"),
                (b"cache-control", b"no-cache"),
            ]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            try:
                async for choices in self._answers.changes():
                    await event(encode(self._answers.chunk(choices)))
                if (last := self._answers.last_chunk()) is not None:
                    await event(encode(last))
            except EngineDeadError:
                await event(error_body(503, "the engine has stopped"))
            await event(b"[DONE]")
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        await _until_disconnect(receive, respond, self._answers)


async def _until_disconnect(
    receive: Receive, respond: Callable[[], Awaitable[None]], answers: Answers
) -> None:
    """Run `respond`, cancel it when the client disconnects, and free the engine in any case."""
    task = asyncio.ensure_future(respond())

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        task.cancel()

    watcher = asyncio.ensure_future(watch())
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await task
    finally:
        watcher.cancel()
        answers.close()


async def _body(request: Request) -> bytes:
    """The request's body. Raises HTTPException(413) when it is too large."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
    return bytes(body)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    body = error_body(error.status_code, error.detail)
    return Response(body, error.status_code, headers=error.headers, media_type=JSON)


async def _server_error(request: Request, error: Exception) -> Response:
    return Response(error_body(500, "internal error; the server's log says more"), 500, media_type=JSON)
