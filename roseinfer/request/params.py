"""A request's sampling parameters, and how it ends."""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from numbers import Integral

import msgspec
import numpy as np
from numpy.typing import NDArray

#: How many top tokens a request may ask for with each logprob.
MAX_LOGPROBS = 20
MAX_TEMPERATURE = MAX_REPETITION_PENALTY = 100
MIN_REPETITION_PENALTY = 0.01
#: OpenAI's bounds of what is added to logits, and subtracted from them.
MAX_BIAS, MAX_PENALTY = 100, 2
#: How many tokens may have a bias, and how many may end an answer.
MAX_BIASED, MAX_STOP_TOKENS = 1024, 64
#: `max_tokens` of a request without a limit.
MAX_TOKENS = 2**31 - 1
_SAMPLING_TYPES = {
    "seed": np.uint64,
    "top_k": np.int64,
    "temperature": np.float32,
    "top_p": np.float32,
    "min_p": np.float32,
}
#: The fields of SamplingParams that choose a token, given its logits: one row a request.
SAMPLING = np.dtype(list(_SAMPLING_TYPES.items()), align=True)
#: An array `[R]` of dtype SAMPLING.
SamplingRows = NDArray[np.void]

#: OpenAI's code for it; clients shorten the prompt then.
CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"


class RequestError(Exception):
    """A request that this engine can never serve. The message is for the client; `field` is the field that is
    wrong, `code` OpenAI's error code, where there is one."""

    def __init__(self, message: str, field: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.field, self.code = field, code


class FinishReason(StrEnum):
    """The reason why an answer ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"


class SamplingParams(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """The sampling of tokens. temperature 0 is greedy; top_k 0 and top_p 1 are no limit.

    `seed` determines the random numbers: sampled tokens depend on nothing but it and the request's logits.
    `logprobs`: how many top tokens come with each token's logprob; None: no logprobs. `prompt_logprobs`: the
    same for the tokens of the prompt, except the first. `stops`: the front end may end the request early, at
    a stop string, and needs its times so far with the first token. Raises RequestError for a value out of
    its range.

    Logits are adjusted in this order: `logit_bias` is added; logits of all tokens of prompt and answer are
    divided by `repetition_penalty` where they are positive, else multiplied by it (Keskar et al. 2019, as in
    transformers); `frequency_penalty` for each occurrence in the answer, and `presence_penalty` once, are
    subtracted (OpenAI). Then come temperature; `min_p`, which drops tokens whose probability is below it
    times the largest; top_k; and top_p. `stop_token_ids` end an answer as the end-of-text token does, also
    with `ignore_eos`. Until an answer has `min_tokens` tokens, tokens that would end it have logit -inf.
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
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    prompt_logprobs: int | None = None

    def choice(self, index: int) -> SamplingParams:
        """Return the parameters of choice `index` of a prompt, which has the seed plus `index`."""
        return msgspec.structs.replace(self, seed=(self.seed + index) % 2**64) if index else self

    @property
    def adjusts(self) -> bool:
        """True if logits have a bias or penalties, for all tokens of the answer."""
        return self.penalizes or bool(self.logit_bias)

    @property
    def penalizes(self) -> bool:
        """True if tokens that the request has already have other logits than the model's."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)

    @property
    def sampling_row(self) -> tuple[float, ...]:
        """The values of a row of SAMPLING."""
        return tuple(getattr(self, name) for name in _SAMPLING_TYPES)

    @cached_property
    def biases(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Tokens `[n]` and values `[n]` of `logit_bias`, made once for all steps."""
        tokens, values = zip(*self.logit_bias, strict=True) if self.logit_bias else ((), ())
        return np.array(tokens, np.int64), np.array(values, np.float32)

    @property
    def masks_ends(self) -> bool:
        """True if tokens that end the answer are excluded at first."""
        return self.min_tokens > 0 and (not self.ignore_eos or bool(self.stop_token_ids))

    def ends(self, eos: tuple[int, ...]) -> tuple[int, ...]:
        """Tokens that end the answer, for a model with the end-of-text tokens `eos`."""
        return self.stop_token_ids if self.ignore_eos else (*eos, *self.stop_token_ids)

    def __post_init__(self) -> None:
        _whole("max_tokens", self.max_tokens, 1, MAX_TOKENS)
        _whole("min_tokens", self.min_tokens, 0, self.max_tokens)
        _within("temperature", self.temperature, 0, MAX_TEMPERATURE)
        _whole("top_k", self.top_k, 0, 2**31 - 1)
        _whole("seed", self.seed, 0, 2**64 - 1)
        _whole("logprobs", self.logprobs or 0, 0, MAX_LOGPROBS)
        _whole("prompt_logprobs", self.prompt_logprobs or 0, 0, MAX_LOGPROBS)
        _within("top_p", self.top_p, 0, 1)
        if self.top_p == 0:
            raise RequestError("top_p must be above 0 and at most 1", "top_p")
        _within("min_p", self.min_p, 0, 1)
        _within("presence_penalty", self.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
        _within("frequency_penalty", self.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
        _within("repetition_penalty", self.repetition_penalty, MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY)
        if not isinstance(self.logit_bias, tuple | list):
            raise RequestError("logit_bias takes pairs: tuple(biases.items())", "logit_bias")
        if len(self.logit_bias) > MAX_BIASED:
            raise RequestError(f"logit_bias has more than {MAX_BIASED} tokens", "logit_bias")
        try:
            for _, bias in self.logit_bias:
                _within("logit_bias", bias, -MAX_BIAS, MAX_BIAS)
        except (TypeError, ValueError):
            raise RequestError("logit_bias takes pairs of a token and a number", "logit_bias") from None
        if not isinstance(self.stop_token_ids, tuple | list):
            raise RequestError("stop_token_ids must be a tuple or a list", "stop_token_ids")
        if len(self.stop_token_ids) > MAX_STOP_TOKENS:
            raise RequestError(f"more than {MAX_STOP_TOKENS} stop_token_ids", "stop_token_ids")


class Finished(msgspec.Struct, frozen=True, array_like=True):
    """The end of a request, its times (s), and how many of its prompt tokens were in the prefix cache."""

    id: int
    reason: FinishReason
    queue_wait: float
    prefill: float
    generation: float
    cached_tokens: int = 0


def _whole(field: str, value: int, low: int, high: int) -> None:
    if not isinstance(value, Integral):
        raise RequestError(f"{field} must be a whole number", field)
    _within(field, value, low, high)


def _within(field: str, value: float, low: float, high: float) -> None:
    try:
        fits = low <= value <= high
    except (TypeError, ValueError):  # it is no number
        fits = False
    if not fits:
        raise RequestError(f"{field} must be from {low} to {high}", field)
