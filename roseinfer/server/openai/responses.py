"""The bodies of responses, as OpenAI defines them and vLLM extends them."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Protocol

import msgspec

from roseinfer.request.params import Finished
from roseinfer.server.openai.logprobs import ChatLogprobs, CompletionLogprobs, Logprobs

_encode = msgspec.json.Encoder().encode


class PromptDetails(msgspec.Struct, frozen=True):
    """Prompt tokens that were in the prefix cache; none where it is off."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a whole HTTP request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class Metrics(msgspec.Struct, frozen=True):
    """Where an answer's time went, in ms: `tokenize_ms` in the front end, before submission to the engine;
    the others in the engine."""

    tokenize_ms: float
    queue_wait_ms: float
    prefill_ms: float
    time_to_first_token_ms: float
    generation_time_ms: float

    @classmethod
    def of(cls, tokenize: float, end: Finished) -> Metrics:
        """The metrics of a request that ended; `tokenize` in s."""
        return cls(
            tokenize_ms=tokenize * 1e3,
            queue_wait_ms=end.queue_wait * 1e3,
            prefill_ms=end.prefill * 1e3,
            time_to_first_token_ms=(end.queue_wait + end.prefill) * 1e3,
            generation_time_ms=end.generation * 1e3,
        )


class ChoiceBody(msgspec.Struct, omit_defaults=True):
    """A choice of a completion, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: str | None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    metrics: Metrics | msgspec.UnsetType = msgspec.UNSET


class ChatText(msgspec.Struct, omit_defaults=True):
    """A message, or what a chunk adds to it; the first chunk has its role."""

    content: str
    role: str | msgspec.UnsetType = msgspec.UNSET


class MessageBody(msgspec.Struct, omit_defaults=True):
    """A choice of a chat completion."""

    index: int
    message: ChatText
    logprobs: Logprobs | None
    finish_reason: str | None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    metrics: Metrics | msgspec.UnsetType = msgspec.UNSET


class DeltaBody(msgspec.Struct, omit_defaults=True):
    """What a chunk adds to a choice of a chat completion."""

    index: int
    delta: ChatText
    logprobs: Logprobs | None
    finish_reason: str | None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    metrics: Metrics | msgspec.UnsetType = msgspec.UNSET


class ResponseBody(msgspec.Struct):
    """A whole response, or a chunk of a stream."""

    id: str
    created: int
    model: str
    choices: Sequence[ChoiceBody | MessageBody | DeltaBody]
    usage: Usage | msgspec.UnsetType | None
    object: str


UsageField = Usage | msgspec.UnsetType | None


class Format(Protocol):
    """How the bodies of one request's responses are written. They share an id."""

    logprobs: type[Logprobs]

    def whole(self, choices: list[ChoiceBody], usage: UsageField) -> bytes:
        """A whole response."""

    def chunk(self, choices: list[ChoiceBody], usage: UsageField, *, first: bool = False) -> bytes:
        """A chunk of a stream; `first`: of its choice."""


class CompletionFormat:
    """For /v1/completions."""

    logprobs: type[Logprobs] = CompletionLogprobs

    def __init__(self, model: str) -> None:
        self._id, self._created, self._model = f"cmpl-{random.getrandbits(128):032x}", int(time.time()), model

    def whole(self, choices: list[ChoiceBody], usage: UsageField) -> bytes:
        return _encode(ResponseBody(self._id, self._created, self._model, choices, usage, "text_completion"))

    def chunk(self, choices: list[ChoiceBody], usage: UsageField, *, first: bool = False) -> bytes:
        return self.whole(choices, usage)


class ChatFormat:
    """For /v1/chat/completions."""

    logprobs: type[Logprobs] = ChatLogprobs

    def __init__(self, model: str) -> None:
        self._id, self._created, self._model = (
            f"chatcmpl-{random.getrandbits(128):032x}",
            int(time.time()),
            model,
        )

    def whole(self, choices: list[ChoiceBody], usage: UsageField) -> bytes:
        messages = [
            MessageBody(
                c.index, ChatText(c.text, "assistant"), c.logprobs, c.finish_reason, c.token_ids, c.metrics
            )
            for c in choices
        ]
        return _encode(ResponseBody(self._id, self._created, self._model, messages, usage, "chat.completion"))

    def chunk(self, choices: list[ChoiceBody], usage: UsageField, *, first: bool = False) -> bytes:
        role = "assistant" if first else msgspec.UNSET
        deltas = [
            DeltaBody(c.index, ChatText(c.text, role), c.logprobs, c.finish_reason, c.token_ids, c.metrics)
            for c in choices
        ]
        return _encode(
            ResponseBody(self._id, self._created, self._model, deltas, usage, "chat.completion.chunk")
        )
