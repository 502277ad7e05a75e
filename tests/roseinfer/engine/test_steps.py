"""Steps: when they are launched, their arrays and padding, and those that warm an engine up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from roseinfer.batch import NO_INTS, Batch, Ints, Segment
from roseinfer.config import EngineConfig
from roseinfer.engine.loop import Loop
from roseinfer.engine.pace import FEWEST, LEAST, LONGEST, MOST, RECENT, Pace
from roseinfer.engine.runner import Pending, Runner
from roseinfer.engine.sampler import SamplingBatch
from roseinfer.engine.step_arrays import prompt_arrays, prompt_numbers, put_decode, put_prompts
from roseinfer.engine.warmup import warm_up
from roseinfer.kvcache.blocks import BlockAllocator
from roseinfer.kvcache.prefix import NoPrefixCache
from roseinfer.request.limits import Limits
from roseinfer.request.params import SamplingParams
from roseinfer.scheduler.cost import StepCosts
from roseinfer.scheduler.policies import Policies
from roseinfer.scheduler.request import Request
from roseinfer.scheduler.running import Running
from roseinfer.scheduler.scheduler import Scheduler
from roseinfer.scheduler.weighed import Weighed


@pytest.mark.parametrize("most", [1, 2, 4096])
def test_the_largest_steps_are_warmed_up(most: int) -> None:
    class Counts:
        """Takes requests, and ends all of them with the first step."""

        info: Any = SimpleNamespace(
            config=EngineConfig(device="cuda", prefill_max_tokens=most), limits=Limits(100, 66, 6600)
        )
        sizes, waiting = set[int](), 0

        @property
        def has_work(self) -> bool:
            return self.waiting > 0

        def add(self, request_id: int, prompt: NDArray[np.int32], params: SamplingParams) -> None:
            self.waiting += len(prompt)

        def step(self) -> None:
            self.sizes.add(self.waiting)
            self.waiting = 0

        def flush_cache(self) -> None: ...

        def forget_drafts(self, *, drafts: bool = True) -> None: ...

    engine = Counts()
    warm_up(engine)
    assert {max(1, most // 2), most} <= engine.sizes


durations = st.floats(1e-5, 1.0)
rows = st.integers(0, 2000)


def batch(prompt_rows: int, decodes: int) -> Batch:
    tokens = np.zeros(prompt_rows + decodes, dtype=np.int64)
    lengths = np.ones(decodes, dtype=np.int64)
    return Batch(tokens, tokens, tokens, (), lengths, NO_INTS, NO_INTS, np.zeros((1, 1), dtype=np.int64), 16)


def pace_of(launches: list[float]) -> Pace:
    pace = Pace()
    for seconds in launches:
        pace.launched(seconds, late=False)
    return pace


@given(rows, st.integers(0, 300), st.lists(durations, max_size=40), st.lists(durations, max_size=40))
def test_the_wait_leaves_time_for_the_launch(prompts, decodes, steps, launches):
    pace = pace_of(launches)
    for seconds in steps:
        pace.ended(batch(prompts, decodes), seconds)
    wait = pace.wait_s(batch(prompts, decodes))
    assert 0 <= wait <= LONGEST
    if len(steps) < FEWEST or len(launches) < FEWEST:
        assert wait == 0
    else:
        left = min(steps[-RECENT:]) - 2 * max(launches[-RECENT:]) - LEAST
        assert wait == pytest.approx(min(max(left, 0), LONGEST))


@given(st.lists(st.tuples(rows, st.integers(0, 300), durations), min_size=3, max_size=30), rows, rows)
def test_more_rows_never_wait_for_less(steps, more_prompts, more_decodes):
    pace = pace_of([1e-4] * FEWEST)
    for prompts, decodes, seconds in steps:
        pace.ended(batch(prompts, decodes), seconds)
    prompts, decodes, _ = steps[0]
    fewer, more = batch(prompts, decodes), batch(prompts + more_prompts, decodes + more_decodes)
    assert pace.wait_s(fewer) <= pace.wait_s(more)


def test_a_device_that_waited_has_its_next_launches_sooner() -> None:
    pace = pace_of([1e-4] * FEWEST)
    for _ in range(FEWEST):
        pace.ended(batch(0, 8), 0.05)
    before = pace.wait_s(batch(0, 8))
    pace.launched(1e-4, late=True)
    assert pace.wait_s(batch(0, 8)) == pytest.approx(before - LEAST)
    for _ in range(20):
        pace.launched(1e-4, late=True)
    assert pace.wait_s(batch(0, 8)) == pytest.approx(0.05 - 2e-4 - MOST)
    for _ in range(1000):
        pace.launched(1e-4, late=False)
    assert pace.wait_s(batch(0, 8)) == pytest.approx(before)


def test_a_kind_that_is_not_seen_any_more_holds_up_no_other() -> None:
    """Requests with long contexts came in few rows; then short ones come in more."""
    pace = pace_of([1e-4] * FEWEST)
    for _ in range(RECENT):
        pace.ended(batch(0, 8), 0.06)
    assert pace.wait_s(batch(0, 12)) > 0.05
    pace.ended(batch(0, 12), 0.005)
    assert pace.wait_s(batch(0, 12)) < 0.005
    pace.ended(batch(0, 8), 0.06)
    assert pace.wait_s(batch(0, 8)) > 0.05


SIZE, ROOM, ROWS, PADDING_ROW = 8, 3, 6, 99
#: Two prompts of which the second does not end here, then two requests that decode.
BATCH = Batch(
    tokens=np.array([11, 12, 13, 14, 15, -1, -1]),
    positions=np.array([0, 1, 2, 20, 21, 30, 40]),
    cache_slots=np.array([64, 65, 66, 100, 101, 3, 5]),
    segments=(
        Segment(start=0, count=3, context=0, blocks=np.array([4]), request=7),
        Segment(start=3, count=2, context=20, blocks=np.array([5, 6]), request=8),
    ),
    decode_lengths=np.array([31, 41]),
    last_rows=np.array([2, 5, 6]),
    requests=np.array([7, 1, 0]),
    block_table=np.zeros((10, 4), dtype=np.int64),
    block_size=16,
)


def test_prompts_and_padding() -> None:
    array = np.full(prompt_numbers(SIZE, ROOM), -7, dtype=np.int32)
    put_prompts(array, BATCH, SIZE, ROOM, PADDING_ROW)
    arrays = prompt_arrays(array, SIZE, ROOM)
    assert arrays.tokens.tolist() == [11, 12, 13, 14, 15, 0, 0, 0]
    assert arrays.positions.tolist() == [0, 1, 2, 20, 21, 0, 0, 0]
    assert arrays.slots.tolist() == [64, 65, 66, 100, 101, -1, -1, -1]
    assert arrays.queries.tolist() == [0, 3, 5, 5]
    assert arrays.keys.tolist() == [0, 3, 25, 25]
    assert arrays.requests.tolist() == [7, 8, PADDING_ROW]
    assert arrays.last.tolist() == [2, 0, 0]
    assert arrays.ended.tolist() == [7, PADDING_ROW, PADDING_ROW]
    assert -7 not in array


def test_requests_that_decode_and_padding() -> None:
    array = np.full(2 * ROWS, -7, dtype=np.int32)
    put_decode(array, BATCH, 4, ROWS, PADDING_ROW)
    assert array[:ROWS].tolist() == [1, 0, PADDING_ROW, PADDING_ROW, -7, -7]
    assert array[ROWS:].tolist() == [31, 41, 0, 0, -7, -7]


def test_costs_are_fitted_while_the_device_computes() -> None:
    """Neither before the next step is launched, nor once the tokens are there."""
    happened, costs = list[str](), StepCosts()
    costs.update = lambda: happened.append("fit")  # type: ignore[method-assign]

    class Device(Runner, Pending):
        def launch(self, batch: Batch, sampling: SamplingBatch) -> Pending:
            happened.append("launch")
            self._count = len(batch.requests)
            return self

        def tokens(self) -> Ints:
            happened.append("tokens")
            return np.full(self._count, 5)

        def logprobs(self) -> None:
            return None

    running, allocator = Running(2, 64, 16), BlockAllocator(8)
    policies = Policies(2, 2, 64, composition=Weighed(costs), costs=costs)
    scheduler = Scheduler(running, allocator, NoPrefixCache(allocator, 16), policies, ())
    prompt = np.zeros(4, dtype=np.int32)
    scheduler.add(Request(0, prompt, SamplingParams(3), 0.0, prompt))
    loop = Loop(scheduler, running, Device(), overlap=True)
    while loop.step() is not None:
        pass
    assert happened == ["launch", *["launch", "fit", "tokens"] * 2, "fit", "tokens"]
