"""What is drawn for each request beside its prompt: its adapter, and the format of its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from harness.lazy_sequence import make_sequence
from harness.workload.planned_requests import PlannedRequest

#: The model itself among its adapters.
BASE = "base"
#: Beside the seeds of prompts.
_STREAM = 0x10A


@dataclass(frozen=True)
class DrawnFields:
    """What there is to draw from.

    Attributes:
        adapters: Weight of each adapter (LoRA) by its name in requests; BASE is the model without one.
        response_format: OpenAI's field of that name; None: answers are free.
        share: Of the requests that get it.
    """

    adapters: Mapping[str, float]
    response_format: Mapping[str, Any] | None = None
    share: float = 1.0

    def of(self, requests: Sequence[PlannedRequest], seed: int) -> Sequence[PlannedRequest]:
        """The requests with what was drawn for them: the same for the same seed, for every engine."""
        rng = np.random.default_rng([seed, _STREAM])
        names, weights = list(self.adapters), np.array(list(self.adapters.values()), float)
        chosen = rng.choice(len(names), len(requests), p=weights / weights.sum()) if names else None
        formatted = rng.random(len(requests)) < self.share

        def drawn(i: int) -> PlannedRequest:
            adapter = None if chosen is None or names[chosen[i]] == BASE else names[chosen[i]]
            given = self.response_format if formatted[i] else None
            return replace(requests[i], adapter=adapter, response_format=given)

        return make_sequence(len(requests), drawn)
