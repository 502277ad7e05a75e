"""Steps and messages between ranks."""

from __future__ import annotations

import socket

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roseinfer.batch import Batch, Segment
from roseinfer.engine.ranks.messages import RankDone, receive
from roseinfer.engine.ranks.step_memory import StepMemory, StepSizes


@settings(max_examples=10)
@given(st.data())
def test_steps_arrive_as_they_were_sent(data: st.DataObject) -> None:
    """With the table as it is then, of which only changed lines are sent."""
    numbers, rows, blocks, size = st.integers(0, 2**40), 6, 8, 4

    def array(*shape: int) -> np.ndarray:
        length = int(np.prod(shape))
        drawn = data.draw(st.lists(numbers, min_size=length, max_size=length))
        return np.array(drawn, np.int64).reshape(shape)

    limits = StepSizes(40, rows, blocks)
    descriptor = StepMemory.create(limits)
    sender, receiver = StepMemory(descriptor, limits, size), StepMemory(descriptor, limits, size)
    table = np.zeros((rows, blocks), np.int64)
    for _ in range(data.draw(st.integers(1, 6))):
        order = data.draw(st.permutations(range(rows)))
        prompts = data.draw(st.integers(0, 3))
        decoding = data.draw(st.integers(0, rows - prompts))
        changed = np.array(data.draw(st.lists(st.sampled_from(order), unique=True)), np.int64)
        table[changed] = array(len(changed), blocks)
        segments, start = [], 0
        for request in order[:prompts]:
            count, context = data.draw(st.integers(1, 5)), data.draw(st.integers(0, 32))
            cached = table[request, : -(-context // size)]
            segments.append(Segment(start, count, context, cached, request))
            start += count
        lengths = np.array([data.draw(st.integers(1, 32)) for _ in range(decoding)], np.int64)
        total = start + decoding
        batch = Batch(
            array(total), array(total), array(total), tuple(segments), lengths, array(prompts + decoding),
            np.array(order[: prompts + decoding], np.int64), table, size, changed, array(2, 3),
        )  # fmt: skip
        decoded, prompt_rows = array(decoding), array(2)
        sender.write(batch, decoded, prompt_rows)
        step = receiver.read()
        received = step.batch
        assert received.tokens.tolist() == [*batch.tokens[:start].tolist(), *decoded.tolist()]
        for name in (
            "positions", "cache_slots", "decode_lengths", "last_rows", "requests", "decode_blocks", "changed",
            "copies",
        ):  # fmt: skip
            assert np.array_equal(getattr(received, name), getattr(batch, name)), name
        assert np.array_equal(received.block_table, table)
        assert received.decode_start == batch.decode_start
        assert np.array_equal(step.prompt_rows, prompt_rows)
        for segment, sent in zip(received.segments, batch.segments, strict=True):
            assert (segment.start, segment.count, segment.context, segment.request) == (
                sent.start, sent.count, sent.context, sent.request,
            )  # fmt: skip
            assert segment.blocks.tolist() == sent.blocks.tolist()


@pytest.mark.integration
def test_what_a_rank_says_last_is_not_lost_with_what_it_said_before() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            for done in (RankDone(), RankDone("not enough memory")):
                theirs.sendall(msgspec.json.encode(done) + b"\n")
            theirs.sendall(b"{")
        assert [receive(ours) for _ in range(3)] == [RankDone(), RankDone("not enough memory"), None]
