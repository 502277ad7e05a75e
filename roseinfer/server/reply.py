"""What all answers of one HTTP request have in common."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from roseinfer.params import SamplingParams
from roseinfer.server.answer import Answer
from roseinfer.server.engine_client import EngineClient, Receiver
from roseinfer.server.http import Connection
from roseinfer.server.requests import CompletionRequest, Work
from roseinfer.server.responses import Choice, Completion, Usage
from roseinfer.tokenizer.detokenizer import Detokenizer, NoText, StopStrings
from roseinfer.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Backend:
    """What requests are answered with."""

    engine: EngineClient
    tokenizer: Tokenizer | None
    model: str  # as clients call it
    stream_interval: int

    def detokenizer(self) -> Detokenizer:
        """A new answer's text."""
        return NoText() if self.tokenizer is None else self.tokenizer.detokenizer()


class Reply:
    """Makes an answer for each prompt and each of `n`, and asks the engine for its tokens."""

    def __init__(
        self,
        backend: Backend,
        connection: Connection,
        request: CompletionRequest,
        work: Work,
        prompts: list[NDArray[np.int32]],
    ) -> None:
        self._backend, self._connection, self._request = backend, connection, request
        self._id, self._created = f"cmpl-{uuid.uuid4().hex}", int(time.time())
        self._prompt_tokens = sum(map(len, prompts))
        self._ids: list[int] = []
        self._answers: list[Answer] = []
        self._open = len(prompts) * work.n
        for prompt in prompts:
            for _ in range(work.n):
                answer = Answer(backend.detokenizer(), StopStrings(work.stops), work.params.min_tokens)
                receiver = self._receiver(len(self._answers), answer)
                params = _with_seed(work.params, len(self._answers))
                self._answers.append(answer)
                self._ids.append(backend.engine.submit(prompt, params, receiver))
        connection.answer_with(self)

    def _receiver(self, index: int, answer: Answer) -> Receiver:
        """What takes the tokens of choice `index`."""
        raise NotImplementedError

    def pause(self) -> None:
        """The client does not read fast enough."""

    def resume(self) -> None:
        """The client has read."""

    def close(self) -> None:
        """Free what the engine still holds for this request."""
        for id in self._ids:
            self._backend.engine.discard(id)

    def stop(self, index: int) -> None:
        """The answer has ended before the engine's own end."""
        self._backend.engine.discard(self._ids[index])

    def body(self, choices: list[Choice]) -> Completion:
        """A response with these choices."""
        return Completion(self._id, self._created, self._backend.model, choices)

    def usage(self) -> Usage:
        """Tokens so far."""
        made = sum(answer.tokens for answer in self._answers)
        return Usage(self._prompt_tokens, made, self._prompt_tokens + made)


def _with_seed(params: SamplingParams, index: int) -> SamplingParams:
    """The same sampling, with a seed of its own for each answer."""
    return msgspec.structs.replace(params, seed=(params.seed + index) % 2**64)
