"""What all answers of one HTTP request have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from roseinfer.request.params import Finished, SamplingParams
from roseinfer.server.engine_client import EngineClient, Receiver
from roseinfer.server.http.connection import Connection
from roseinfer.server.openai.choice import Answer, metrics_of
from roseinfer.server.openai.generation import Work
from roseinfer.server.openai.logprobs import AnswerLogprobs
from roseinfer.server.openai.requests import GenerationRequest
from roseinfer.server.openai.responses import Choice, PromptDetails, Shape, Usage
from roseinfer.tokenizer.chat import ChatTemplate
from roseinfer.tokenizer.detokenizer import Detokenizer, NoText, StopStrings
from roseinfer.tokenizer.names import TokenNames
from roseinfer.tokenizer.tokenizer import Tokenizer

#: For a model without a tokenizer.
NO_NAMES = TokenNames([], {})


@dataclass(frozen=True)
class Backend:
    """What requests are answered with."""

    engine: EngineClient
    tokenizer: Tokenizer | None
    model: str  # as clients call it
    stream_interval: int
    chat_template: ChatTemplate | None

    def detokenizer(self) -> Detokenizer:
        """A new answer's text."""
        return NoText() if self.tokenizer is None else self.tokenizer.detokenizer()

    def names(self) -> TokenNames:
        """How single tokens are written."""
        return NO_NAMES if self.tokenizer is None else self.tokenizer.names


class Reply(ABC):
    """Makes an answer for each prompt and each of `n`, and asks the engine for its tokens.

    `tokenize`: seconds that it took until the prompts were token ids.
    """

    def __init__(
        self,
        backend: Backend,
        connection: Connection,
        request: GenerationRequest,
        shape: Shape,
        work: Work,
        prompts: list[NDArray[np.int32]],
        tokenize: float,
    ) -> None:
        self._backend, self._connection, self._request = backend, connection, request
        self._shape, self._tokenize = shape, tokenize
        self._prompt_tokens, self._cached_tokens = sum(map(len, prompts)), 0
        self._ids: list[int] = []
        self._answers: list[Answer] = []
        self._open = len(prompts) * work.n
        for prompt in prompts:
            for _ in range(work.n):
                answer = self._answer(work)
                receiver = self._receiver(len(self._answers), answer)
                params = _with_seed(work.params, len(self._answers))
                self._answers.append(answer)
                self._ids.append(backend.engine.submit(prompt, params, receiver, connection.received))
        connection.answer_with(self)

    def _answer(self, work: Work) -> Answer:
        backend, params = self._backend, work.params
        logprobs = None
        if params.logprobs is not None:
            logprobs = AnswerLogprobs(self._shape.logprobs, params.logprobs, backend.names())
        return Answer(backend.detokenizer(), StopStrings(work.stops), params.min_tokens, logprobs)

    @abstractmethod
    def _receiver(self, index: int, answer: Answer) -> Receiver:
        """What takes the tokens of choice `index`."""

    def pause(self) -> None:  # noqa: B027 (nothing to do unless it streams)
        """The client does not read fast enough."""

    def resume(self) -> None:  # noqa: B027
        """The client has read."""

    def close(self) -> None:
        """Free what the engine still holds for this request."""
        for id in self._ids:
            self._backend.engine.discard(id)

    def stop(self, index: int) -> Finished | None:
        """The answer has ended before the engine's own end, which is told as far as it is known."""
        self._backend.engine.discard(self._ids[index])
        return self._answers[index].stopped()

    def note(self, choice: Choice, end: Finished | None) -> None:
        """What is told at the end of a choice; None by an engine that does not tell who has begun."""
        if end is not None:
            if choice.index % self._request.n == 0:  # a prompt counts once
                self._cached_tokens += end.cached_tokens
            if self._request.return_metrics:
                choice.metrics = metrics_of(self._tokenize, end)

    def usage(self) -> Usage:
        """Tokens so far."""
        made = sum(answer.tokens for answer in self._answers)
        usage = Usage(self._prompt_tokens, made, self._prompt_tokens + made)
        if not self._backend.engine.info.prefix_cache:
            return usage
        return msgspec.structs.replace(usage, prompt_tokens_details=PromptDetails(self._cached_tokens))


def _with_seed(params: SamplingParams, index: int) -> SamplingParams:
    """The same sampling, with a seed of its own for each answer."""
    return msgspec.structs.replace(params, seed=(params.seed + index) % 2**64)
