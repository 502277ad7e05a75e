"""The bodies of answers, as OpenAI defines them and vLLM extends them."""

from __future__ import annotations

import msgspec


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a whole HTTP request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Metrics(msgspec.Struct, frozen=True):
    """Where an answer's time went, in ms, as the engine saw it."""

    queue_wait_ms: float
    prefill_ms: float
    time_to_first_token_ms: float
    generation_time_ms: float


class Choice(msgspec.Struct, omit_defaults=True):
    """An answer, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: None
    finish_reason: str | None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    metrics: Metrics | msgspec.UnsetType = msgspec.UNSET


class Completion(msgspec.Struct):
    """A whole response, or a chunk of a stream."""

    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    object: str = "text_completion"
