"""The limits that every request must fit."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from contextlib import suppress
from numbers import Integral

import msgspec
import numpy as np
from numpy.typing import NDArray

from roseinfer.request.params import CONTEXT_LENGTH_EXCEEDED, RequestError, SamplingParams


class UnknownTokenError(RequestError, ValueError):
    """A prompt has an id that is no token of the vocabulary."""

    def __init__(self, token: object, vocab_size: int) -> None:
        super().__init__(
            f"there is no token {token} in the vocabulary of {vocab_size:,} tokens: "
            f"token ids must be from 0 to {vocab_size - 1}",
            "prompt",
        )


class Limits(msgspec.Struct, frozen=True):
    """Token ids are below `vocab_size`; prompt and answer together fit the context of `max_model_len` tokens,
    and the cache of `kv_tokens`."""

    vocab_size: int
    max_model_len: int
    kv_tokens: int

    def left(self, prompt_tokens: int) -> int:
        """The most tokens that the answer to a prompt of `prompt_tokens` may have."""
        return min(self.max_model_len, self.kv_tokens) - prompt_tokens

    def check_ids(self, params: SamplingParams) -> None:
        """Raise RequestError where `params` name tokens that are not in the vocabulary."""
        if not (params.logit_bias or params.stop_token_ids):
            return
        tokens_of_fields = {
            "logit_bias": [token for token, _ in params.logit_bias],
            "stop_token_ids": params.stop_token_ids,
        }
        for field, tokens in tokens_of_fields.items():
            if any(not isinstance(token, Integral) or not 0 <= token < self.vocab_size for token in tokens):
                raise RequestError(
                    f"{field}: token ids must be whole numbers from 0 to {self.vocab_size - 1}", field
                )

    def check(self, prompt: NDArray[np.int32], max_tokens: int) -> None:
        """Raise RequestError unless the engine can serve this prompt `[n]` with an answer of `max_tokens`
        tokens; 0: the one token that is generated is not shown, and needs no room."""
        if len(prompt) == 0:
            raise RequestError("the prompt is empty", "prompt")
        total = len(prompt) + max_tokens
        if total > self.max_model_len:
            raise RequestError(
                f"This model's maximum context length is {self.max_model_len} tokens. However, you requested "
                f"{total} tokens ({len(prompt)} in the prompt, {max_tokens} in the completion): "
                "the prompt is too long, or max_tokens too large.",
                "prompt",
                CONTEXT_LENGTH_EXCEEDED,
            )
        if total > self.kv_tokens:
            raise RequestError(f"{total} tokens do not fit the KV cache of {self.kv_tokens} tokens", "prompt")
        ids = prompt.view(np.uint32)  # a negative one is large
        if ids.max() >= self.vocab_size:
            raise UnknownTokenError(prompt[ids.argmax()], self.vocab_size)

    def token_ids(self, prompt: Sequence[int]) -> NDArray[np.int32]:
        """A prompt as an array `[n]`. Raises UnknownTokenError, and RequestError where it is not a list."""
        if isinstance(prompt, str) or not isinstance(prompt, Collection):
            raise RequestError(f"a prompt is a list of token ids, not {prompt!r:.100}", "prompt")
        if not {*map(type, prompt)} - {int}:
            with suppress(OverflowError):
                ids = np.asarray(array("i", prompt))  # faster than a look at each token
                if ids.view(np.uint32).max(initial=0) < self.vocab_size:
                    return ids
        for token in prompt:
            if not isinstance(token, int | np.integer) or not 0 <= token < self.vocab_size:
                raise UnknownTokenError(token, self.vocab_size)
        return np.asarray(prompt, dtype=np.int32)
