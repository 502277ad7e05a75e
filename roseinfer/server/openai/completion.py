"""The answer to one HTTP request, as one JSON body."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from roseinfer.request.params import Finished
from roseinfer.server.http.connection import Connection
from roseinfer.server.http.errors import HttpError
from roseinfer.server.http.response import Response
from roseinfer.server.openai.backend import Backend
from roseinfer.server.openai.choice import Choice
from roseinfer.server.openai.errors import error_response
from roseinfer.server.openai.generation import Generation
from roseinfer.server.openai.requests import GenerationRequest
from roseinfer.server.openai.responses import ChoiceBody, Format, Metrics, PromptDetails, Usage


class Completion:
    """A choice for each prompt and each of `n`; the response is sent when the last has ended.

    Args:
        format: how bodies are written.
        tokenize: seconds that tokenizing the prompts took.
    """

    def __init__(
        self,
        backend: Backend,
        connection: Connection,
        request: GenerationRequest,
        format: Format,
        tokenize: float,
    ) -> None:
        self._backend, self._connection, self._request = backend, connection, request
        self._format, self._tokenize = format, tokenize
        self._choices: list[Choice] = []
        self._ids: list[int] = []  # the engine's, of each choice
        self._n = 1
        self._open = 0  # choices that have not ended
        self._prompt_tokens = self._cached_tokens = 0
        self._ended_tokens = 0  # of the choices that are forgotten
        self._bodies: list[ChoiceBody] = []

    def start(self, generation: Generation, prompts: list[NDArray[np.int32]], client: int = 0) -> None:
        """Submit every choice to the engine for `client`, and answer the connection's current request. Raises
        HttpError where the engine takes no more; then none is submitted."""
        self._prompt_tokens = sum(map(len, prompts))
        self._n, self._open = generation.n, len(prompts) * generation.n
        try:
            for index in range(self._open):
                self._submit(index, generation, prompts[index // generation.n], client)
        except HttpError:
            self.close()
            raise
        self._connection.answer_with(self)

    def _submit(self, index: int, generation: Generation, prompt: NDArray[np.int32], client: int) -> None:
        choice = self._choice(index, generation, prompt)
        self._choices.append(choice)
        params, received = generation.params_of(index), self._connection.received
        self._ids.append(self._backend.engine.submit(prompt, params, choice, received, client))

    def _choice(self, index: int, generation: Generation, prompt: NDArray[np.int32]) -> Choice:
        form = self._format.logprobs
        return Choice(index, generation, prompt, self._backend, form, self._end_choice, self.fail)

    def pause(self) -> None:
        """The client does not read fast enough; nothing is sent before the end anyway."""

    def resume(self) -> None:
        """The client has read."""

    def close(self) -> None:
        """Discard the engine's requests, and the choices."""
        for id in self._ids:
            self._backend.engine.discard(id)
        self._forget()

    def _forget(self) -> None:
        """Drop the choices, which refer to this object, so that no reference cycle is left to collect."""
        self._ended_tokens += sum(choice.tokens for choice in self._choices)
        self._choices.clear()

    def fail(self, error: HttpError) -> None:
        """End all choices with `error`."""
        if self._open:
            self._open = 0
            self.close()
            self._send_error(error)

    def usage(self) -> Usage:
        """Tokens so far."""
        made = self._ended_tokens + sum(choice.tokens for choice in self._choices)
        details = PromptDetails(self._cached_tokens)
        return Usage(self._prompt_tokens, made, self._prompt_tokens + made, details)

    def _end_choice(self, choice: Choice, reason: str, end: Finished | None) -> None:
        if end is None:  # a stop string was found before the engine's end
            end = choice.stopped()
            self._backend.engine.discard(self._ids[choice.index], end)
        body = choice.take(reason)
        if end is not None:
            if choice.index % self._n == 0:  # a prompt counts once
                self._cached_tokens += end.cached_tokens
            if self._request.return_metrics:
                body.metrics = Metrics.of(self._tokenize, end)
        self._send_choice(choice, body, last=self._open == 1)
        self._open -= 1

    def _send_choice(self, choice: Choice, body: ChoiceBody, *, last: bool) -> None:
        """`choice` has ended with `body`."""
        self._bodies.append(body)
        if last:
            bodies = sorted(self._bodies, key=lambda body: body.index)
            response = Response(200, self._format.whole(bodies, self.usage()))
            self._forget()
            self._connection.respond(response)

    def _send_error(self, error: HttpError) -> None:
        self._connection.respond(error_response(error))
