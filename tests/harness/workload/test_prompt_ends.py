"""Prompts of random ids end with a whole character."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harness.workload.planned_requests import PlannedRequest
from harness.workload.prompt_ends import end_whole

#: Tokens 3 and 4 are no end.
ENDS = np.array([0, 1, 2, 5, 5, 5], dtype=np.int32)


@given(st.lists(st.integers(0, 9), max_size=8))
def test_only_the_last_token_changes_and_only_where_it_is_no_end(ids: list[int]) -> None:
    prompt = np.array(ids, dtype=np.int32)
    [ended] = end_whole([PlannedRequest(0, None, prompt, 1)], ENDS)
    wanted = [*ids[:-1], 5 if ids[-1] in (3, 4) else ids[-1]] if ids else []
    assert ended.prompt.tolist() == wanted and prompt.tolist() == ids


def test_what_somebody_wrote_stays() -> None:
    written = PlannedRequest(0, None, np.array([1, 3], dtype=np.int32), 1, text="so")
    assert end_whole([written], ENDS) == [written]
