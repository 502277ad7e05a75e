"""roseinfer's routes in HTTP servers of others: `python -m benchmarks.http_layer_servers NAME PORT`.

Routes, bodies, engine client and the engine that computes nothing are those of `benchmarks.frontend`; only
what speaks HTTP is exchanged. Tokens that come while a piece is being sent leave together in the next one.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, MutableMapping
from contextlib import suppress
from typing import Any

import uvloop

from roseinfer.config import EngineConfig
from roseinfer.server.access import Access
from roseinfer.server.app import App
from roseinfer.server.config import ServerConfig
from roseinfer.server.engine_client import EngineClient
from roseinfer.server.http.errors import HttpError
from roseinfer.server.http.parser import HttpRequest
from roseinfer.server.http.producer import Producer
from roseinfer.server.http.response import Response
from roseinfer.server.metrics.counters import Counters
from roseinfer.server.openai.backend import Backend
from roseinfer.server.openai.errors import error_response
from roseinfer.server.openai.large_bodies import LargeBodies
from roseinfer.server.openai.submission import Submission
from roseinfer.server.prefix_owners import PrefixOwners
from roseinfer.server.process.engine_process import EngineProcess
from roseinfer.server.queue_limits import QueueLimits
from roseinfer.server.replicas import Replicas
from roseinfer.tokenizer.tokenizer import load_tokenizer

STREAM = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}


class Exchange:
    """One request and its answer: what the routes take for a connection."""

    def __init__(self) -> None:
        self.received, self.peer = time.monotonic(), "127.0.0.1"
        self._pieces: list[bytes] = []
        self._ready = asyncio.Event()
        self._ended = False
        self._producer: Producer | None = None

    def answer_with(self, producer: Producer) -> None:
        self._producer = producer

    def begin_stream(self, event: bytes) -> Callable[[bytes], None]:
        self._write(event)
        return self._write

    def _write(self, data: bytes) -> None:
        self._pieces.append(data)
        self._ready.set()

    def end_stream(self, *events: bytes) -> None:
        self._pieces += events
        self._ended = True
        self._ready.set()

    def respond(self, response: Response) -> None:
        self._write(response.body)
        self.end_stream()

    def close(self) -> None:
        """The client has gone, or has its answer."""
        if self._producer is not None:
            self._producer.close()

    async def pieces(self) -> AsyncIterator[bytes]:
        """The answer, as it comes."""
        while not self._ended or self._pieces:
            await self._ready.wait()
            self._ready.clear()
            data, self._pieces = b"".join(self._pieces), []
            yield data


class Routes:
    """roseinfer's routes. Use `await start()` first."""

    async def start(self) -> None:
        self._process = EngineProcess(
            EngineConfig(device="cpu", warmup=False, threads=1), 1, "benchmarks.synthetic_engine"
        )
        counters = Counters.create(1)
        client = EngineClient(self._process.sockets[0], 0, counters.of(0), lambda: None)
        engine = Replicas([client], counters, PrefixOwners.create(counters.salt))
        await engine.start()
        model = engine.info.config.model
        tokenizer = load_tokenizer(model)
        backend = Backend(engine, tokenizer, model, 1, None)
        backend.detokenizer().escaped.fill()
        limits = ServerConfig()
        access = Access((), (), counters.salt)
        queue = QueueLimits(counters, limits.max_waiting_requests, limits.max_waiting_tokens)
        submission = Submission(
            backend, counters, access=access, queue=queue, max_inflight=None, tokenize_threads=1,
            large_bodies=LargeBodies(model, tokenizer),
        )  # fmt: skip
        self._app = App(backend, counters, submission, access=access, queue=queue, created=int(time.time()))
        gc.collect()
        gc.freeze()

    async def answer(
        self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]], body: bytearray
    ) -> Response | Exchange:
        """A whole response, or one that comes."""
        request = HttpRequest(method, path, dict(headers), True, True, body, time.monotonic())
        exchange = Exchange()
        try:
            if error := self._app.admit(request):
                raise error
            answer = self._app.handle(request, exchange)  # type: ignore[arg-type]
            response = await answer if isinstance(answer, Coroutine) else answer
        except HttpError as error:
            response = error_response(error)
        return exchange if response is None else response


routes = Routes()
Message = MutableMapping[str, Any]


async def asgi(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """The routes as an ASGI application."""
    if scope["type"] == "lifespan":
        await receive()
        await routes.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message.get("body", b"")
        if not message.get("more_body"):
            break

    async def begin(status: int, headers: dict[str, str]) -> None:
        lines = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": lines})

    answer = await routes.answer(scope["method"], scope["path"], scope["headers"], body)
    if isinstance(answer, Response):
        length = {"content-length": str(len(answer.body)), "content-type": answer.content_type}
        await begin(answer.status, {**length, **answer.headers})
        await send({"type": "http.response.body", "body": answer.body})
        return

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        answer.close()

    watcher = asyncio.ensure_future(watch())
    try:
        await begin(200, STREAM)
        async for data in answer.pieces():
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    finally:
        watcher.cancel()
        answer.close()


def uvicorn(port: int) -> None:
    """With httptools and uvloop."""
    import uvicorn

    config = uvicorn.Config(
        asgi, port=port, loop="uvloop", http="httptools", log_level="warning", access_log=False
    )
    uvicorn.Server(config).run()


def hypercorn(port: int) -> None:
    """With h11 and uvloop."""
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    uvloop.run(serve(asgi, config))


def granian(port: int) -> None:
    """With hyper (Rust) and uvloop."""
    from granian import Granian
    from granian.constants import Interfaces, Loops

    target = "benchmarks.http_layer_servers:asgi"
    Granian(target, port=port, interface=Interfaces.ASGI, loop=Loops.uvloop, log_access=False).serve()


def aiohttp(port: int) -> None:
    """With its own server and uvloop."""
    from aiohttp import web

    async def handle(request: web.Request) -> web.StreamResponse:
        body = bytearray(await request.read())
        headers = [(name.lower(), value) for name, value in request.raw_headers]
        answer = await routes.answer(request.method, request.path, headers, body)
        if isinstance(answer, Response):
            kind = {"content-type": answer.content_type}
            return web.Response(status=answer.status, body=answer.body, headers={**kind, **answer.headers})
        stream = web.StreamResponse(headers=STREAM)
        try:
            with suppress(ConnectionError):
                await stream.prepare(request)
                async for data in answer.pieces():
                    await stream.write(data)
                await stream.write_eof()
        finally:
            answer.close()
        return stream

    async def run() -> None:
        await routes.start()
        app = web.Application(client_max_size=32 << 20)
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()

    uvloop.run(run())


SERVERS = {each.__name__: each for each in (uvicorn, hypercorn, granian, aiohttp)}

if __name__ == "__main__":
    SERVERS[sys.argv[1]](int(sys.argv[2]))
