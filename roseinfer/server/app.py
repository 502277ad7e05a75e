"""Routes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from roseinfer import __version__
from roseinfer.ipc.messages import CheckBlocks, StartProfile, StopProfile
from roseinfer.server.access import Access
from roseinfer.server.http.connection import Connection
from roseinfer.server.http.errors import BadRequestError, HttpError
from roseinfer.server.http.parser import HttpRequest
from roseinfer.server.http.producer import Answer
from roseinfer.server.http.response import Response
from roseinfer.server.metrics.counters import Counters
from roseinfer.server.metrics.exposition import CONTENT_TYPE, exposition
from roseinfer.server.openai.backend import Backend
from roseinfer.server.openai.completion import Completion
from roseinfer.server.openai.generation import Generation, too_long
from roseinfer.server.openai.large_bodies import LARGE, LargeBodies, read
from roseinfer.server.openai.openapi import openapi
from roseinfer.server.openai.requests import (
    GenerationRequest,
    ProfileRequest,
    parse,
)
from roseinfer.server.openai.responses import ChatFormat, CompletionFormat
from roseinfer.server.openai.stream import StreamedCompletion
from roseinfer.server.queue_limits import QueueLimits
from roseinfer.tokenizer.tokenizer import Tokenizer
from roseinfer.tracing.spans import span

#: Routes that need no key: of liveness, then of readiness.
OPEN = ("/health", "/live", "/livez", "/ready", "/readyz")

Route = Callable[[HttpRequest, Connection], Answer]


class App:
    """Answers requests. `tokenize_threads` 0 tokenizes within the handler."""

    def __init__(
        self,
        backend: Backend,
        counters: Counters,
        *,
        access: Access,
        max_inflight: int | None,
        queue: QueueLimits,
        tokenize_threads: int,
        large_bodies: LargeBodies,
        created: int,
        profile_dir: Path | None = None,
    ) -> None:
        self._backend, self._counters = backend, counters
        self._access, self._max_inflight, self._queue = access, max_inflight, queue
        self._profile_dir = profile_dir
        self._tokenizing = ThreadPoolExecutor(tokenize_threads, "tokenize") if tokenize_threads else None
        self._large_bodies = large_bodies
        self.stopping = False
        self._created = created
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
        return openapi(self._routes)

    def admit(self, request: HttpRequest) -> HttpError | None:
        """Why a request is refused by its head alone; strangers learn nothing but that they have no key."""
        if request.path not in OPEN and (
            error := self._access.check_key(request) or self._access.check_host(request)
        ):
            return error
        method, _ = self._routes.get(request.path, ("", None))
        if not method:
            return HttpError(404, f"there is no {request.path[:100]}")
        allowed = ("GET", "HEAD") if method == "GET" else (method,)
        if request.method not in allowed:
            return HttpError(405, f"{request.path} takes {method}", headers={"allow": ", ".join(allowed)})
        kind = request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if method == "POST" and kind != b"application/json":  # a page of another site cannot send it unasked
            return HttpError(415, "the content-type must be application/json")
        return None

    def handle(self, request: HttpRequest, connection: Connection) -> Answer:
        """The response to an admitted request; None when it comes as tokens do. Raises HttpError."""
        return self._routes[request.path][1](request, connection)

    def _live(self, request: HttpRequest, connection: Connection) -> Response:
        """Whether the engine lives, and does its work where it has any."""
        return Response(200 if self._lives else 503)

    def _ready(self, request: HttpRequest, connection: Connection) -> Response:
        """Whether it lives, has room for requests and is not stopping."""
        return Response(200 if self._lives and not self.stopping and not self._queue.full else 503)

    @property
    def _lives(self) -> bool:
        return self._backend.engine.alive and not self._backend.engine.silent

    def _openapi(self, request: HttpRequest, connection: Connection) -> Response:
        """This document."""
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
        """What the engine runs with, and its load now."""
        load = await self._backend.engine.load()
        info = {
            "version": __version__,
            "model": self._backend.model,
            "settings": self._backend.engine.info.settings(),
            "http_processes": len(self._counters.closed()),
            "load": msgspec.structs.asdict(load) | {"inflight": self._counters.inflight},
        }
        return Response(200, msgspec.json.encode(info))

    async def _metrics(self, request: HttpRequest, connection: Connection) -> Response:
        """For Prometheus: all front ends together, whichever answers."""
        load = await self._backend.engine.load()
        return Response(200, exposition(self._counters, load), CONTENT_TYPE)

    async def _flush_cache(self, request: HttpRequest, connection: Connection) -> Response:
        """Forget the prefix cache. Answers in flight are not affected."""
        await self._backend.engine.flush()
        return Response(200)

    async def _integrity(self, request: HttpRequest, connection: Connection) -> Response:
        """Whether every block of the cache is free, and each once; 409 also while requests are in flight."""
        done = await self._backend.engine.order(CheckBlocks())
        if done.error is not None:
            raise HttpError(409, done.error)
        return Response(200)

    async def _start_profile(self, request: HttpRequest, connection: Connection) -> Response:
        """Begin a torch profile of the engine process; see ProfileRequest."""
        root = self._profile_dir
        if root is None:
            raise HttpError(403, "profiles are off; --profile-dir turns them on")
        asked = parse(request.take_body(), ProfileRequest)
        if not asked.output_dir.isprintable():
            raise BadRequestError("output_dir has characters that cannot be printed", "output_dir")
        try:
            folder = (root / asked.output_dir).resolve()
        except (OSError, ValueError) as error:  # ValueError: a NUL
            raise BadRequestError(f"output_dir {asked.output_dir!r}: {error}", "output_dir") from None
        if not folder.is_relative_to(root):
            raise BadRequestError(f"output_dir must be within {root}", "output_dir")
        return await self._profile(StartProfile(str(folder), asked.num_steps, asked.with_stack))

    async def _stop_profile(self, request: HttpRequest, connection: Connection) -> Response:
        """End it; the trace is written when this answers."""
        return await self._profile(StopProfile())

    async def _profile(self, order: StartProfile | StopProfile) -> Response:
        done = await self._backend.engine.order(order)
        if done.error is not None:
            raise BadRequestError(done.error)
        return Response(200)

    def _completions(self, request: HttpRequest, connection: Connection) -> Answer:
        """Continue texts or token ids."""
        return self._answer(request, connection, chat=False)

    def _chat(self, request: HttpRequest, connection: Connection) -> Answer:
        """The next message of a conversation."""
        return self._answer(request, connection, chat=True)

    def _answer(self, request: HttpRequest, connection: Connection, *, chat: bool) -> Answer:
        """Token ids in a body that is not large reach the engine at once."""
        if len(request.body) > LARGE:
            return self._answer_large(request, connection, chat)
        most = self._backend.engine.info.limits.max_model_len
        asked = read(request.take_body(), chat, self._backend.chat_template, most)
        return self._generate(*asked, request, connection, chat)

    async def _answer_large(self, request: HttpRequest, connection: Connection, chat: bool) -> None:
        most = self._backend.engine.info.limits.max_model_len
        asked = await self._large_bodies.read(request, chat, most)
        tokenizing = self._generate(*asked, request, connection, chat)
        if tokenizing is not None:
            await tokenizing

    def _generate(
        self,
        body: GenerationRequest,
        generation: Generation,
        request: HttpRequest,
        connection: Connection,
        chat: bool,
    ) -> Coroutine[Any, Any, None] | None:
        """Have it generated; texts are tokenized first, in what is returned."""
        if body.model is not None and body.model != self._backend.model:
            message = f"the model {body.model!r:.100} does not exist; this is {self._backend.model!r}"
            raise HttpError(404, message, "model", "model_not_found")
        client = self._access.client(request, connection.peer)
        self._check_inflight(generation.num_choices)
        ids = [prompt for prompt in generation.prompts if not isinstance(prompt, str)]
        if len(ids) < len(generation.prompts):
            return self._tokenize(body, generation, connection, client, chat)
        self._submit(body, generation, ids, 0.0, connection, client, chat)
        return None

    async def _tokenize(
        self,
        body: GenerationRequest,
        generation: Generation,
        connection: Connection,
        client: int,
        chat: bool,
    ) -> None:
        """The prompts to token ids; they count as in flight meanwhile."""
        choices, start = generation.num_choices, time.monotonic()
        self._queue.check(client, choices)
        with self._backend.engine.reserve(client, choices):
            prompts = [await self._token_ids(p, generation.special_tokens) for p in generation.prompts]
        tokenize = time.monotonic() - start
        self._submit(body, generation, prompts, tokenize, connection, client, chat)
        self._counters.observe("tokenize", np.array([tokenize]))

    def _submit(
        self,
        body: GenerationRequest,
        generation: Generation,
        prompts: list[NDArray[np.int32]],
        tokenize: float,
        connection: Connection,
        client: int,
        chat: bool,
    ) -> None:
        """Ask the engine for every answer. `tokenize`: seconds until the prompts were token ids."""
        engine = self._backend.engine
        if generation.params.prompt_logprobs is not None and not engine.info.runner.prompt_logprobs:
            raise BadRequestError("logprobs of prompts need a server with --no-cuda-graph", "echo")
        generation = generation.fit(engine.info.limits, prompts)
        self._queue.check(client, generation.num_choices, generation.n * sum(map(len, prompts)))
        kind = StreamedCompletion if body.stream else Completion
        form = ChatFormat if chat else CompletionFormat
        completion = kind(self._backend, connection, body, form(self._backend.model), tokenize)
        completion.start(generation, prompts, client)

    def _check_inflight(self, choices: int) -> None:
        limit = self._max_inflight
        if limit is not None and choices > limit:
            raise BadRequestError(f"{choices} answers are asked for; the server gives {limit} at a time", "n")
        if limit is not None and self._counters.inflight + choices > limit:
            raise HttpError(429, "too many requests in flight", headers={"retry-after": "1"})

    async def _token_ids(self, prompt: str | NDArray[np.int32], special_tokens: bool) -> NDArray[np.int32]:
        if not isinstance(prompt, str):
            return prompt
        tokenizer = self._backend.tokenizer
        if tokenizer is None:
            raise BadRequestError("the model has no tokenizer; send token ids", "prompt")
        most = self._backend.engine.info.limits.max_model_len
        if self._tokenizing is None:
            return _encode(tokenizer, most, prompt, special_tokens)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._tokenizing, _encode, tokenizer, most, prompt, special_tokens)


def _encode(tokenizer: Tokenizer, most: int, text: str, special_tokens: bool) -> NDArray[np.int32]:
    with span("roseinfer.tokenize"):
        ids = tokenizer.encode_within(most, text, special_tokens)
    if ids is None:
        raise too_long(most)
    return ids
