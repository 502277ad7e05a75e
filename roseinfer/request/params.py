"""What front end and engine both speak of: requests, their ends, and what an engine can serve."""

from __future__ import annotations

from enum import StrEnum
from math import inf

import msgspec
import numpy as np
from numpy.typing import NDArray

#: How many of the likeliest tokens a request may be told beside each of its own.
MAX_LOGPROBS = 20


class RequestError(Exception):
    """A request that this engine can never serve. The message is for the client."""


class FinishReason(StrEnum):
    """Why an answer ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"


class SamplingParams(msgspec.Struct, frozen=True, array_like=True):
    """How the next token is chosen. temperature 0 is greedy; top_k 0 and top_p 1 are no limit.

    `seed` makes a request's tokens depend on nothing but its own logits, whatever else is in the batch.
    `logprobs` is how many of the likeliest tokens are told with each token's own logprob; None: nothing is.
    `stops`: who asked may end the request, at a stop string, and is told with its first token what is known.
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


class Finished(msgspec.Struct, frozen=True, array_like=True):
    """The end of a request, its times in seconds, and how much of its prompt was in the prefix cache."""

    id: int
    reason: FinishReason
    queue_wait: float
    prefill: float
    generation: float
    cached_tokens: int = 0


class EngineInfo(msgspec.Struct, frozen=True):
    """What an engine runs with, every `auto` resolved, a switch that does nothing here off.

    `cuda_graph`: batch sizes that have a graph; `decode_parts`: those of them that decode in parts.
    """

    model: str
    device: str
    dtype: str
    vocab_size: int
    max_model_len: int
    kv_tokens: int
    block_size: int
    max_active_requests: int
    max_batch_size: int
    prefill_max_batch_size: int
    prefill_max_tokens: int
    chunked_prefill_size: int | None
    admission_policy: str
    decode_first: bool
    mixed_steps: bool
    prefix_cache: bool
    overlap_schedule: bool
    attention: str
    prefill_backend: str
    cuda_graph: tuple[int, ...]
    fused_ops: bool
    pinned_staging: bool
    decode_parts: tuple[int, ...]
    linear: str
    threads: int
    spin_ms: float

    def describe(self) -> str:
        """One line that says what is in use."""
        return " ".join(f"{name}={getattr(self, name)}" for name in self.__struct_fields__)


def check_request(info: EngineInfo, prompt: NDArray[np.int32], params: SamplingParams) -> None:
    """Raise RequestError unless the engine can serve this prompt `[n]`."""
    if len(prompt) == 0:
        raise RequestError("the prompt is empty")
    if params.max_tokens < 1:
        raise RequestError("max_tokens must be at least 1")
    if not 0 <= params.min_tokens <= params.max_tokens:
        raise RequestError("min_tokens must be from 0 to max_tokens")
    if not 0 <= params.temperature < inf:
        raise RequestError("temperature must be 0 or more")
    if not 0 < params.top_p <= 1:
        raise RequestError("top_p must be above 0 and at most 1")
    if not 0 <= params.seed < 2**64:
        raise RequestError("seed must be from 0 to 2^64 - 1")
    if params.logprobs is not None and not 0 <= params.logprobs <= MAX_LOGPROBS:
        raise RequestError(f"logprobs must be from 0 to {MAX_LOGPROBS}")
    total = len(prompt) + params.max_tokens
    if total > info.max_model_len:
        raise RequestError(
            f"{len(prompt)} prompt tokens and {params.max_tokens} of max_tokens are {total}, "
            f"more than the context of {info.max_model_len} tokens"
        )
    if total > info.kv_tokens:
        raise RequestError(f"{total} tokens do not fit the KV cache of {info.kv_tokens} tokens")
    if int(prompt.min()) < 0 or int(prompt.max()) >= info.vocab_size:
        raise RequestError(f"token ids must be from 0 to {info.vocab_size - 1}")
