"""A request as the engine sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from roseinfer.request.params import SamplingParams


@dataclass(slots=True, eq=False)
class Request:
    """A prompt `[n]` of token ids, and its times (monotonic, s): submission, admission, first token.

    `tokens`: what is to be computed: the prompt, and after a preemption also the tokens generated before it.
    `hashes`: of the full blocks of `tokens`, for the prefix cache, which had `cached_tokens` of the prompt.
    `client`: who asks: see Waiting. `choice`: which one of the same prompt: see SamplingParams.choice.
    `salt`: of `hashes`. `passed`: how many later requests were admitted while this one was the first in the
    queue. `scored`: prompt tokens after the first whose logprobs, if asked for, are computed by launched
    steps. `depth`: how many tokens are drafted for it next; None: see Speculation. `draft_context`: tokens
    whose keys and values a draft model has.
    """

    id: int
    prompt: NDArray[np.int32]
    params: SamplingParams
    submitted: float
    tokens: NDArray[np.int32]
    client: int = 0
    choice: int = 0
    salt: bytes = b""
    admitted: float = 0.0
    first_token: float = 0.0
    passed: int = 0
    hashes: list[bytes] = field(default_factory=list)
    cached_tokens: int = 0
    scored: int = 0
    depth: int | None = None
    draft_context: int = 0

    @property
    def needs_scores(self) -> bool:
        """True if logprobs of the prompt are asked for that no launched step computes."""
        return self.params.prompt_logprobs is not None and self.scored < len(self.prompt) - 1
