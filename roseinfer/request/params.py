"""How a request's tokens are chosen, and how a request ends."""

from __future__ import annotations

from enum import StrEnum

import msgspec

#: How many of the likeliest tokens a request may ask for with each of its own.
MAX_LOGPROBS = 20
MAX_TEMPERATURE = 100
#: Of a request that has no limit of its own.
MAX_TOKENS = 2**31 - 1


class RequestError(Exception):
    """A request that this engine can never serve. The message is for the client; `field` is what is wrong."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class FinishReason(StrEnum):
    """Why an answer ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"


class SamplingParams(msgspec.Struct, frozen=True, array_like=True):
    """How the next token is chosen. temperature 0 is greedy; top_k 0 and top_p 1 are no limit.

    `seed` makes a request's tokens depend on nothing but its own logits, whatever else is in the batch.
    `logprobs` is how many of the likeliest tokens come with each token's own logprob; None: no logprobs.
    `stops`: the front end may end the request early, at a stop string, and needs its times so far with the
    first token. Raises RequestError for a value out of its range.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None
    stops: bool = False

    def __post_init__(self) -> None:
        _within("max_tokens", self.max_tokens, 1, MAX_TOKENS)
        _within("min_tokens", self.min_tokens, 0, self.max_tokens)
        _within("temperature", self.temperature, 0, MAX_TEMPERATURE)
        _within("top_k", self.top_k, 0, 2**31 - 1)
        _within("seed", self.seed, 0, 2**64 - 1)
        _within("logprobs", self.logprobs or 0, 0, MAX_LOGPROBS)
        if not 0 < self.top_p <= 1:
            raise RequestError("top_p must be above 0 and at most 1", "top_p")


class Finished(msgspec.Struct, frozen=True, array_like=True):
    """The end of a request, its times in seconds, and how much of its prompt was in the prefix cache."""

    id: int
    reason: FinishReason
    queue_wait: float
    prefill: float
    generation: float
    cached_tokens: int = 0


def _within(field: str, value: float, low: int, high: int) -> None:
    if not low <= value <= high:
        raise RequestError(f"{field} must be from {low} to {high}", field)
