"""The answer to one HTTP request as one JSON body, with a choice for each prompt and each of `n`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from roseinfer.request.logprobs import TokenLogprobs
from roseinfer.request.params import Finished, FinishReason
from roseinfer.server.http.connection import Connection
from roseinfer.server.http.errors import HttpError
from roseinfer.server.http.response import Producer, Response
from roseinfer.server.openai.generation import Generation
from roseinfer.server.openai.responses import (
    ChoiceBody,
    ChoiceLogprobs,
    CompletionFormat,
    Metrics,
    PromptDetails,
    Usage,
    error_response,
)
from roseinfer.server.openai.tool_calls import ToolCalls
from roseinfer.server.replicas import Replicas
from roseinfer.tokenizer.chat import ChatTemplate
from roseinfer.tokenizer.detokenizer import ByteDetokenizer, Detokenizer, StopStrings, Vocabulary
from roseinfer.tokenizer.token_names import TokenNames
from roseinfer.tokenizer.tokenizer import Tokenizer

#: Names and texts of tokens without a tokenizer.
_NO_NAMES, _NO_TEXT = TokenNames([], {}), Vocabulary([])


@dataclass(frozen=True)
class Backend:
    """All engine replicas, and the model's tokenizer and chat template. `model`: its name for clients;
    `stream_interval`: tokens in a chunk of a stream; `calls_tools`: answers of chats may call tools."""

    engine: Replicas
    tokenizer: Tokenizer | None
    model: str
    stream_interval: int
    chat_template: ChatTemplate | None
    calls_tools: bool = False

    def other_model(self, name: str) -> HttpError:
        """Return the error for a request of a model that is not served."""
        message = f"the model {name!r:.100} does not exist; this is {self.model!r}"
        return HttpError(404, message, "model", "model_not_found")

    def detokenizer(self, after: Sequence[int] | NDArray[np.int32] = ()) -> Detokenizer:
        """Return a detokenizer for a new choice, which follows the text of the tokens `after` (`[n]`)."""
        return ByteDetokenizer(_NO_TEXT) if self.tokenizer is None else self.tokenizer.detokenizer(after)

    def names(self) -> TokenNames:
        """Return the names of single tokens."""
        return _NO_NAMES if self.tokenizer is None else self.tokenizer.names


class Choice:
    """Receives the tokens of one choice from the engine, and buffers the text they add until `take`.
    `prompt`: token ids `[n]`; the answer begins with it if the request asks for that."""

    __slots__ = (
        "_begun", "_calls", "_completion", "_echo", "_first_token", "_ids", "_logprobs", "_min_tokens",
        "_only_echo", "_pieces", "_prompt_logprobs", "_stops", "_text", "_texts", "_token_logprobs",
        "_with_ids", "index", "tokens",
    )  # fmt: skip

    def __init__(self, index: int, prompt: NDArray[np.int32], completion: Completion) -> None:
        self.index, self._completion = index, completion
        backend, generation = completion.backend, completion.generation
        params = generation.params
        #: The texts of the prompt's tokens, if the prompt came as a text.
        self._pieces = generation.pieces[index // generation.n] if generation.pieces else None
        decoded = generation.echo and self._pieces is None
        self._text = backend.detokenizer(() if decoded else prompt)
        self._stops = StopStrings(generation.stops)
        self._calls = ToolCalls() if generation.calls_tools else None
        self._min_tokens, self._with_ids = params.min_tokens, generation.with_ids
        self._only_echo = generation.only_echo
        #: The prompt, until the answer begins with it.
        self._echo: list[int] | None = prompt.tolist() if generation.echo else None
        self._prompt_logprobs: dict[int, TokenLogprobs] = {}
        self._token_logprobs: deque[TokenLogprobs] = deque()
        count = params.prompt_logprobs if params.logprobs is None else params.logprobs
        form = completion.format.logprobs
        self._logprobs = None if count is None else ChoiceLogprobs(form, count, backend.names())
        self.tokens = 0
        self._texts: list[str] = []
        self._ids: list[int] = []
        self._begun: Finished | None = None
        self._first_token = 0.0

    def begin(self, begun: Finished) -> None:
        """Keep the request's times so far; its first token comes next."""
        self._begun, self._first_token = begun, time.monotonic()

    def add_prompt_logprobs(self, position: int, logprobs: TokenLogprobs) -> None:
        """Keep the logprobs of the prompt token at `position`."""
        self._prompt_logprobs[position] = logprobs

    def add_logprobs(self, logprobs: TokenLogprobs) -> None:
        """Keep the logprobs of one of the tokens that come next."""
        self._token_logprobs.append(logprobs)

    def push(self, token: int, end: Finished | None, more: bool = False) -> None:
        """Take the next token; `end` comes with the last."""
        reason = self._add(token, end)
        if reason is not None:
            self._completion.end_choice(self, reason, end)

    def fail(self, error: HttpError) -> None:
        """End the answer with `error`: there is no next token."""
        self._completion.fail(error)

    def take(self, reason: str | None) -> ChoiceBody:
        """Return the text of the tokens since the last call; `reason`: the finish reason if they end the
        choice."""
        logprobs = None if self._logprobs is None else self._logprobs.take()
        body = ChoiceBody(self.index, "".join(self._texts), logprobs, reason)
        if self._calls is not None:
            body.text, calls = self._calls.push(body.text, reason)
            body.tool_calls = calls or msgspec.UNSET
            if reason == "stop" and self._calls.count:
                body.finish_reason = "tool_calls"
        if self._with_ids:
            body.token_ids = self._ids
        self._texts, self._ids = [], []
        return body

    def stopped(self) -> Finished | None:
        """Return the report that the engine would make if it ended the choice now, after a stop string."""
        if self._begun is None:
            return None
        return msgspec.structs.replace(self._begun, generation=time.monotonic() - self._first_token)

    def _begin(self, prompt: list[int]) -> None:
        """Begin the answer with the prompt."""
        pieces, self._echo, self._pieces = self._pieces, None, None
        for position, token in enumerate(prompt):
            text = self._text.push(token) if pieces is None else pieces[position]
            if self._logprobs is not None:
                self._logprobs.add_prompt(token, self._prompt_logprobs.pop(position, None))
                self._logprobs.extend(text)
            self._texts.append(text)

    def _add(self, token: int, end: Finished | None) -> str | None:
        """Buffer the text that `token` adds. Returns the finish reason if it is the last token; `stop` also
        if a stop string came before the engine ended the request."""
        if self._echo is not None:
            self._begin(self._echo)
        if self._only_echo:
            self._texts.append(self._text.finish())
            return "length"
        self.tokens += 1
        stopped = end is not None and end.reason is FinishReason.STOP  # end-of-text, or a stop token
        text = "" if stopped else self._text.push(token)
        if self._logprobs is not None:
            if self._token_logprobs:
                self._logprobs.add(self._token_logprobs.popleft())
            self._logprobs.extend(text)
        counts = self.tokens > self._min_tokens
        shown = self._stops.push(text, counts)
        if end is not None and not self._stops.matched:
            shown += self._stops.push(self._text.finish(), counts) + self._stops.finish()
        self._texts.append(shown)
        if self._with_ids:
            self._ids.append(token)
        if self._stops.matched:
            return "stop"
        return end.reason.value if end is not None else None


class Completion(Producer):
    """A choice for each prompt and each of `n`; the response is sent when the last has ended.

    Args:
        format: Writes the bodies.
        tokenize: Seconds that tokenizing the prompts took.
    """

    choice_kind: type[Choice] = Choice

    def __init__(
        self,
        backend: Backend,
        connection: Connection,
        generation: Generation,
        format: CompletionFormat,
        tokenize: float,
    ) -> None:
        self.backend, self.generation, self.format = backend, generation, format
        self._connection, self._tokenize = connection, tokenize
        self.choices: list[Choice] = []
        self._ids: list[int] = []  # the engine's, of each choice
        self._open = 0  # choices that have not ended
        self._prompt_tokens = self._cached_tokens = 0
        self._ended_tokens = 0  # of the choices that are forgotten
        self._bodies: list[ChoiceBody] = []

    def start(self, prompts: list[NDArray[np.int32]], client: int = 0, salt: bytes = b"") -> None:
        """Submit every choice of `prompts` (token ids `[n]`) to the engine for `client`, with the prefix
        cache of `salt`, and answer the connection's current request. Raises HttpError if the engine takes no
        more; then none is submitted."""
        generation, received = self.generation, self._connection.received
        self._prompt_tokens = sum(map(len, prompts))
        self._open = len(prompts) * generation.n
        try:
            for index, prompt in enumerate(prompts):
                numbers = range(index * generation.n, (index + 1) * generation.n)
                choices = [self.choice_kind(number, prompt, self) for number in numbers]
                self.choices += choices
                params = generation.params_of(index)
                self._ids += self.backend.engine.submit(prompt, params, choices, received, client, salt)
        except HttpError:
            self.close()
            raise
        self._connection.answer_with(self)

    def close(self) -> None:
        """Discard the engine's requests, and the choices."""
        for id in self._ids:
            self.backend.engine.discard(id)
        self._forget()

    def _forget(self) -> None:
        """Drop the choices, which refer to this object, so that no reference cycle is left to collect."""
        self._ended_tokens += sum(choice.tokens for choice in self.choices)
        self.choices.clear()

    def fail(self, error: HttpError) -> None:
        """End all choices with `error`."""
        if self._open:
            self._open = 0
            self.close()
            self._send_error(error)

    def usage(self) -> Usage:
        """Count the tokens so far."""
        completion_tokens = self._ended_tokens + sum(choice.tokens for choice in self.choices)
        total = self._prompt_tokens + completion_tokens
        return Usage(self._prompt_tokens, completion_tokens, total, PromptDetails(self._cached_tokens))

    def end_choice(self, choice: Choice, reason: str, end: Finished | None) -> None:
        """End `choice` with its finish reason. `end`: the engine's report; None if a stop string came
        before the engine's end."""
        if end is None:
            end = choice.stopped()
            self.backend.engine.discard(self._ids[choice.index], end)
        body = choice.take(reason)
        if end is not None:
            if choice.index % self.generation.n == 0:  # a prompt counts once
                self._cached_tokens += end.cached_tokens
            if self.generation.with_metrics:
                body.metrics = Metrics.of(self._tokenize, end)
        self._send_choice(choice, body, last=self._open == 1)
        self._open -= 1

    def _send_choice(self, choice: Choice, body: ChoiceBody, *, last: bool) -> None:
        """Send or keep the `body` with which `choice` has ended."""
        self._bodies.append(body)
        if last:
            bodies = sorted(self._bodies, key=lambda body: body.index)
            response = Response(200, self.format.whole(bodies, self.usage()))
            self._forget()
            self._connection.respond(response)

    def _send_error(self, error: HttpError) -> None:
        self._connection.respond(error_response(error))
