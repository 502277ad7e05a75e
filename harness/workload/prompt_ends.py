"""The last token of prompts that nobody wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from harness.lazy_sequence import make_sequence
from harness.workload.planned_requests import PlannedRequest


def end_whole(requests: Sequence[PlannedRequest], ends: NDArray[np.int32]) -> Sequence[PlannedRequest]:
    """The requests; where a prompt of token ids ends within a character, its last token is another.

    Args:
        ends: (V,) the token to end with instead of each token; those beyond V stay.
    """
    return make_sequence(len(requests), lambda place: _end_whole(requests[place], ends))


def _end_whole(request: PlannedRequest, ends: NDArray[np.int32]) -> PlannedRequest:
    written = request.text is not None or request.messages is not None
    if written or not request.prompt.size or (last := int(request.prompt[-1])) >= len(ends):
        return request
    if ends[last] == last:
        return request
    prompt = request.prompt.copy()
    prompt[-1] = ends[last]
    return replace(request, prompt=prompt)
