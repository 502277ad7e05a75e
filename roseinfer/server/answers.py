"""Tokens of the engine become the answers of one HTTP request."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from roseinfer.params import Finished, SamplingParams
from roseinfer.server.engine_client import EngineClient, Mailbox
from roseinfer.server.protocol import (
    Choice,
    Completion,
    CompletionRequest,
    Metrics,
    StreamOptions,
    Usage,
    Work,
)
from roseinfer.tokenizer.detokenizer import Detokenizer, StopStrings
from roseinfer.tokenizer.tokenizer import Tokenizer


@dataclass
class _Answer:
    """One choice while it grows."""

    engine_id: int
    text: Detokenizer | None
    stops: StopStrings
    min_tokens: int  # stop strings are looked for in the text behind these
    tokens: int = 0
    done: bool = False


class Answers:
    """All choices of one request. Iterate `changes()`; call `close()` whatever happens."""

    def __init__(
        self,
        engine: EngineClient,
        tokenizer: Tokenizer | None,
        request: CompletionRequest,
        work: Work,
        prompts: list[NDArray[np.int32]],
        model: str,
    ) -> None:
        self._engine, self._request, self._model = engine, request, model
        self._id, self._created = f"cmpl-{uuid.uuid4().hex}", int(time.time())
        self._prompt_tokens = sum(len(prompt) for prompt in prompts)
        self._mailbox = Mailbox()
        self._answers: list[_Answer] = []
        for prompt in prompts:
            for _ in range(work.n):
                index = len(self._answers)
                id = engine.submit(prompt, _with_seed(work.params, index), self._mailbox, index)
                text = tokenizer.detokenizer() if tokenizer else None
                self._answers.append(_Answer(id, text, StopStrings(work.stops), work.params.min_tokens))

    async def changes(self) -> AsyncIterator[list[Choice]]:
        """What each wake-up adds to the choices, until all have ended. Raises EngineDeadError."""
        open_answers = len(self._answers)
        while open_answers:
            changed: dict[int, Choice] = {}
            for index, token, finished in await self._mailbox.take():
                answer = self._answers[index]
                if not answer.done:
                    choice = changed.setdefault(index, Choice(index, "", None, None))
                    self._extend(answer, choice, token, finished)
                    open_answers -= answer.done
            if changed:
                yield list(changed.values())

    def _extend(self, answer: _Answer, choice: Choice, token: int, finished: Finished | None) -> None:
        answer.tokens += 1
        if self._request.return_token_ids:
            choice.token_ids = [*(choice.token_ids or ()), token]
        if answer.text is not None:
            text = answer.text.push(token)
            searched = answer.tokens > answer.min_tokens
            choice.text += answer.stops.push(text) if searched else text
            if finished is not None and not answer.stops.found:
                choice.text += answer.stops.push(answer.text.finish()) + answer.stops.finish()
        if answer.stops.found:
            choice.finish_reason = "stop"
            self._engine.discard(answer.engine_id)
        elif finished is not None:
            choice.finish_reason = finished.reason.value
        answer.done = choice.finish_reason is not None
        if answer.done and finished is not None and self._request.return_metrics:
            choice.metrics = Metrics(
                queue_wait_ms=finished.queue_wait * 1e3,
                prefill_ms=finished.prefill * 1e3,
                time_to_first_token_ms=(finished.queue_wait + finished.prefill) * 1e3,
                generation_time_ms=finished.generation * 1e3,
            )

    def chunk(self, choices: list[Choice]) -> Completion:
        """A stream's chunk with these changes."""
        chunk = Completion(self._id, self._created, self._model, choices)
        options = self._request.stream_options or StreamOptions()
        if options.continuous_usage_stats:
            chunk.usage = self.usage()
        elif options.include_usage:
            chunk.usage = None
        return chunk

    def last_chunk(self) -> Completion | None:
        """The usage chunk that ends a stream, where it was asked for."""
        if not (self._request.stream_options or StreamOptions()).include_usage:
            return None
        return Completion(self._id, self._created, self._model, [], usage=self.usage())

    async def whole(self) -> Completion:
        """All answers, complete."""
        choices = [Choice(index, "", None, None) for index in range(len(self._answers))]
        async for changes in self.changes():
            for change in changes:
                choice = choices[change.index]
                choice.text += change.text
                choice.finish_reason = change.finish_reason
                if change.token_ids:
                    choice.token_ids = [*(choice.token_ids or ()), *change.token_ids]
                choice.metrics = change.metrics
        return Completion(self._id, self._created, self._model, choices, usage=self.usage())

    def usage(self) -> Usage:
        """Tokens so far."""
        made = sum(answer.tokens for answer in self._answers)
        return Usage(self._prompt_tokens, made, self._prompt_tokens + made)

    def close(self) -> None:
        """Free what the engine still holds for this request."""
        for answer in self._answers:
            self._engine.discard(answer.engine_id)


def _with_seed(params: SamplingParams, index: int) -> SamplingParams:
    """The same sampling, with a seed of its own for each answer."""
    return msgspec.structs.replace(params, seed=(params.seed + index) % 2**64)
