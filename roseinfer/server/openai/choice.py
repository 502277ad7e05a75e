"""One choice of a completion while it is generated."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from roseinfer.request.logprobs import TokenLogprobs
from roseinfer.request.params import Finished, FinishReason
from roseinfer.server.http.errors import HttpError
from roseinfer.server.openai.backend import Backend
from roseinfer.server.openai.generation import Generation
from roseinfer.server.openai.logprobs import ChoiceLogprobs, Logprobs
from roseinfer.server.openai.responses import ChoiceBody
from roseinfer.tokenizer.detokenizer import StopStrings


class Choice:
    """Receives the tokens of one choice from the engine, and buffers what they add until `take`.

    Args:
        prompt: `[n]`; the answer begins with it where the request asks for that.
        form: how logprobs are written, where the request asks for them.
        on_end: called with the choice, its finish reason and the engine's Finished, once the choice has
            ended; None instead of Finished where a stop string came first.
        on_error: called when the answer fails.
    """

    __slots__ = (
        "_begun", "_echo", "_first_token", "_ids", "_logprobs", "_min_tokens", "_on_end", "_on_error",
        "_only_echo", "_pieces", "_prompt_logprobs", "_stops", "_text", "_texts", "_with_ids", "index",
        "tokens",
    )  # fmt: skip

    def __init__(
        self,
        index: int,
        generation: Generation,
        prompt: NDArray[np.int32],
        backend: Backend,
        form: type[Logprobs],
        on_end: Callable[[Choice, str, Finished | None], None],
        on_error: Callable[[HttpError], None],
    ) -> None:
        self.index, self._on_end, self._on_error = index, on_end, on_error
        params = generation.params
        #: The texts of the prompt's tokens, where the prompt came as a text.
        self._pieces = generation.pieces[index // generation.n] if generation.pieces else None
        decoded = generation.echo and self._pieces is None
        self._text = backend.detokenizer(() if decoded else prompt)
        self._stops = StopStrings(generation.stops)
        self._min_tokens, self._with_ids = params.min_tokens, generation.with_ids
        self._only_echo = generation.only_echo
        #: The prompt, until the answer begins with it.
        self._echo: list[int] | None = prompt.tolist() if generation.echo else None
        self._prompt_logprobs: dict[int, TokenLogprobs] = {}
        count = params.prompt_logprobs if params.logprobs is None else params.logprobs
        self._logprobs = None if count is None else ChoiceLogprobs(form, count, backend.names())
        self.tokens = 0
        self._texts: list[str] = []
        self._ids: list[int] = []
        self._begun: Finished | None = None
        self._first_token = 0.0

    def begin(self, begun: Finished) -> None:
        """The request's times so far; its first token comes next."""
        self._begun, self._first_token = begun, time.monotonic()

    def add_prompt_logprobs(self, position: int, logprobs: TokenLogprobs) -> None:
        """Keep the logprobs of the prompt token at `position`."""
        self._prompt_logprobs[position] = logprobs

    def add_logprobs(self, logprobs: TokenLogprobs) -> None:
        """Add the logprobs of the token that the next `push` brings."""
        if self._echo is not None:
            self._begin(self._echo)
        if self._logprobs is not None:
            self._logprobs.add(logprobs)

    def push(self, token: int, end: Finished | None) -> None:
        """The next token; `end` comes with the last."""
        reason = self._add(token, end)
        if reason is not None:
            self._on_end(self, reason, end)

    def fail(self, error: HttpError) -> None:
        """There is no next token."""
        self._on_error(error)

    def take(self, reason: str | None) -> ChoiceBody:
        """What the tokens since the last call added; `reason`: the finish reason if they end the choice."""
        logprobs = None if self._logprobs is None else self._logprobs.take()
        body = ChoiceBody(self.index, "".join(self._texts), logprobs, reason)
        if self._with_ids:
            body.token_ids = self._ids
        self._texts, self._ids = [], []
        return body

    def stopped(self) -> Finished | None:
        """What the engine would report if it ended the choice now, where a stop string did."""
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
        """Buffer what `token` adds. Returns the finish reason if it is the last token; `stop` also where a
        stop string was found before the engine ended the request."""
        if self._echo is not None:
            self._begin(self._echo)
        if self._only_echo:
            self._texts.append(self._text.finish())
            return "length"
        self.tokens += 1
        stopped = end is not None and end.reason is FinishReason.STOP  # end-of-text, or a stop token
        text = "" if stopped else self._text.push(token)
        if self._logprobs is not None:
            self._logprobs.extend(text)
        counts = self.tokens > self._min_tokens
        shown = self._stops.push(text, counts)
        if end is not None and not self._stops.found:
            shown += self._stops.push(self._text.finish(), counts) + self._stops.finish()
        self._texts.append(shown)
        if self._with_ids:
            self._ids.append(token)
        if self._stops.found:
            return "stop"
        return end.reason.value if end is not None else None
