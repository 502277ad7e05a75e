"""A request as the engine sees it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class FinishReason(StrEnum):
    """Why an answer ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. temperature 0 is greedy; top_k 0 and top_p 1 are no limit.

    `seed` makes a request's tokens depend on nothing but its own logits, whatever else is in the batch.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    ignore_eos: bool = False


@dataclass(slots=True, eq=False)
class Request:
    """A prompt `[n]` of token ids, and the monotonic times (s) of what happened to it.

    `tokens` is the prompt with what was generated so far while the request waits again after a preemption.
    """

    id: int
    prompt: NDArray[np.int32]
    params: SamplingParams
    submitted: float
    tokens: NDArray[np.int32]
    admitted: float = 0.0
    first_token: float = 0.0


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a request, and its times in seconds."""

    id: int
    reason: FinishReason
    queue_wait: float
    prefill: float
    generation: float
