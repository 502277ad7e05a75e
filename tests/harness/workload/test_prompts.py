"""What a prefix cache without bounds could reuse."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harness.traces.trace import Trace, describe
from harness.workload import open_loop
from harness.workload.planned_requests import PlannedRequest, reusable_tokens

VOCAB = 50_257
BLOCK = 16


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=5), max_size=12), st.integers(0, BLOCK - 1))
def test_by_the_definition(bits: list[list[int]], rest: int) -> None:
    """The longest run of whole blocks at the head that any earlier prompt has at its head, by comparing all
    with all; and never the last token of a prompt."""
    prompts = [np.array([bit for bit in own for _ in range(BLOCK)] + [9] * rest, np.int32) for own in bits]
    for index, (prompt, found) in enumerate(zip(prompts, reusable_tokens(prompts), strict=True)):
        shared = 0
        for earlier in prompts[:index]:
            blocks = min(len(prompt), len(earlier)) // BLOCK
            same = [np.array_equal(prompt[: n * BLOCK], earlier[: n * BLOCK]) for n in range(1, blocks + 1)]
            shared = max(shared, sum(same) * BLOCK)
        assert found == min(shared, max(len(prompt) - 1, 0) // BLOCK * BLOCK)


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=10),
    st.sampled_from([16, 512]),
)
def test_prompts_of_a_trace_share_what_its_hashes_say(blocks: list[list[int]], size: int) -> None:
    """With one token after whole blocks, the hit rate is that of the trace's blocks."""
    trace = Trace.build(
        "t", range(len(blocks)), [size * len(own) + 1 for own in blocks], [1] * len(blocks),
        blocks=tuple(map(tuple, blocks)), block_size=size,
    )  # fmt: skip
    found = reusable_tokens(request.prompt for request in open_loop(trace, 1.0, VOCAB, seed=1))
    known = describe(trace)
    assert known.reuse is not None and known.blocks is not None
    assert sum(found) == round(known.reuse * known.blocks) * size


@given(st.lists(st.sampled_from("abc"), max_size=20), st.floats(0.01, 2))
def test_a_turn_follows_the_one_before_it_of_its_session(sessions: list[str], scale: float) -> None:
    ones = [1] * len(sessions)
    planned = open_loop(
        Trace.build("t", range(len(sessions)), ones, ones, session=sessions), scale, VOCAB, seed=0
    )

    def before(request: PlannedRequest) -> list[int]:
        return [i for i in range(request.index) if sessions[i] == sessions[request.index]]

    assert [request.after for request in planned] == [
        max(before(request), default=None) for request in planned
    ]


def test_without_sessions_nothing_waits() -> None:
    assert {request.after for request in open_loop(Trace.build("t", [0, 1], [5, 5], [1, 1]), 1.0, 99, 0)} == {
        None
    }
