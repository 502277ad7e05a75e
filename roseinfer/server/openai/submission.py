"""Submission of admitted requests: parsing, limits, tokenizing, and the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from roseinfer.server.access import Access, QueueLimits
from roseinfer.server.config import ServerConfig
from roseinfer.server.http.connection import Connection
from roseinfer.server.http.errors import RETRY_AFTER, BadRequestError, HttpError
from roseinfer.server.http.parser import HttpRequest
from roseinfer.server.http.response import Answer
from roseinfer.server.metrics.counters import Counters
from roseinfer.server.openai.completion import Backend, Completion
from roseinfer.server.openai.generation import Generation, no_tokenizer, read_body, too_long
from roseinfer.server.openai.large_bodies import LargeBodies, is_large
from roseinfer.server.openai.responses import ChatFormat, CompletionFormat
from roseinfer.server.openai.stream import StreamedCompletion
from roseinfer.tokenizer.tokenizer import Tokenizer
from roseinfer.tracing.spans import span

T = TypeVar("T")


class Submission:
    """Submits completions and chats to the engine."""

    def __init__(
        self,
        backend: Backend,
        counters: Counters,
        access: Access,
        queue: QueueLimits,
        large_bodies: LargeBodies,
        server: ServerConfig,
    ) -> None:
        self._backend, self._counters, self._large_bodies = backend, counters, large_bodies
        self._access, self._queue, self._max_inflight = access, queue, server.max_inflight_requests
        threads = server.tokenize_threads if server.mp_async_admit else 0
        self._tokenizing = ThreadPoolExecutor(threads, "tokenize") if threads else None

    def answer(self, request: HttpRequest, connection: Connection, *, chat: bool) -> Answer:
        """Answer `request`. Prompts of token ids in a body that is not large are submitted at once. Raises
        HttpError."""
        if is_large(request.body, chat):
            return self._answer_large(request, connection, chat)
        most = self._backend.engine.info.limits.max_model_len
        generation = read_body(request.take_body(), chat, self._backend.chat_template, most)
        return self._generate(generation, request, connection)

    async def _answer_large(self, request: HttpRequest, connection: Connection, chat: bool) -> None:
        most = self._backend.engine.info.limits.max_model_len
        client = self._access.client(request, connection.peer)
        generation = await self._large_bodies.read(request, chat, most, client)
        tokenizing = self._generate(generation, request, connection)
        if tokenizing is not None:
            await tokenizing

    def _generate(
        self, generation: Generation, request: HttpRequest, connection: Connection
    ) -> Coroutine[Any, Any, None] | None:
        """Submit the request; if prompts must be tokenized, in the coroutine that is returned."""
        if generation.model is not None and generation.model != self._backend.model:
            raise self._backend.other_model(generation.model)
        if generation.calls_tools and not self._backend.calls_tools:
            message = "tools need a server with --tool-call-parser, or tool_choice none"
            raise BadRequestError(message, "tools", "unsupported_parameter")
        client = self._access.client(request, connection.peer)
        ids = [prompt for prompt in generation.prompts if not isinstance(prompt, str)]
        salt = self._access.cache_salt(request, generation.cache_salt)
        if len(ids) < len(generation.prompts):
            return self._tokenize(generation, connection, client, salt)
        self._check_inflight(generation.num_choices)
        self._submit(generation, ids, 0.0, connection, client, salt)
        return None

    async def _tokenize(
        self, generation: Generation, connection: Connection, client: int, salt: bytes
    ) -> None:
        """Tokenize the prompts, whose choices count as in flight meanwhile, and submit them."""
        choices, start = generation.num_choices, time.monotonic()
        self._check_inflight(choices)
        self._queue.check(client, choices)
        with self._backend.engine.reserve(client, choices):
            prompts = [await self._token_ids(p, generation.special_tokens) for p in generation.prompts]
            if generation.echo:
                pieces = [await self._pieces(p, generation.special_tokens) for p in generation.prompts]
                generation = msgspec.structs.replace(generation, pieces=tuple(pieces))
        tokenize = time.monotonic() - start
        self._submit(generation, prompts, tokenize, connection, client, salt)
        self._counters.observe("tokenize", np.array([tokenize]))

    def _submit(
        self,
        generation: Generation,
        prompts: list[NDArray[np.int32]],
        tokenize: float,
        connection: Connection,
        client: int,
        salt: bytes,
    ) -> None:
        """Submit every choice of `prompts` (token ids `[n]`) to the engine. `tokenize`: seconds that
        tokenizing took."""
        engine = self._backend.engine
        if generation.params.prompt_logprobs is not None and not engine.info.runner.prompt_logprobs:
            raise BadRequestError("logprobs of prompts need a server with --no-cuda-graph", "echo")
        generation = generation.fit(engine.info.limits, prompts)
        self._queue.check(client, generation.num_choices, generation.n * sum(map(len, prompts)))
        kind = Completion if generation.stream is None else StreamedCompletion
        form = ChatFormat if generation.chat else CompletionFormat
        completion = kind(self._backend, connection, generation, form(self._backend.model), tokenize)
        completion.start(prompts, client, salt)

    def _check_inflight(self, choices: int) -> None:
        limit = self._max_inflight
        if limit is not None and choices > limit:
            raise BadRequestError(f"{choices} answers are asked for; the server gives {limit} at a time", "n")
        if limit is not None and self._counters.inflight + choices > limit:
            raise HttpError(429, "too many requests in flight", headers=RETRY_AFTER)

    async def _token_ids(self, prompt: str | NDArray[np.int32], special_tokens: bool) -> NDArray[np.int32]:
        if not isinstance(prompt, str):
            return prompt
        tokenizer = self._backend.tokenizer
        if tokenizer is None:
            raise no_tokenizer()
        most = self._backend.engine.info.limits.max_model_len
        return await self._tokenized(_encode, tokenizer, most, prompt, special_tokens)

    async def _pieces(self, prompt: str | NDArray[np.int32], special_tokens: bool) -> list[str] | None:
        tokenizer = self._backend.tokenizer
        if tokenizer is None or not isinstance(prompt, str):
            return None
        return await self._tokenized(tokenizer.pieces, prompt, special_tokens)

    async def _tokenized(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return the function's result, from a thread that tokenizes if there are some."""
        if self._tokenizing is None:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._tokenizing, function, *arguments)


def _encode(tokenizer: Tokenizer, most: int, text: str, special_tokens: bool) -> NDArray[np.int32]:
    with span("roseinfer.tokenize"):
        ids = tokenizer.encode_within(most, text, special_tokens)
    if ids is None:
        raise too_long(most)
    return ids
