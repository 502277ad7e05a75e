"""When the next requests are sent, given what the client reports of those before."""

from __future__ import annotations

import asyncio
from itertools import permutations
from time import monotonic
from typing import Any, cast

import pytest

from harness.loadgen.load_plan import RawResponse, WireRequest
from harness.loadgen.pacing import Batches


class Submitted(list[tuple[int, float]]):
    """A client that only notes each request and the time at which it was to be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.began = asyncio.Event()

    def open_ahead(self, count: int) -> None:
        pass

    def submit(self, index: int, t_sched: float, late_s: float | None = None) -> None:
        self.append((index, t_sched))
        self.began.set()


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_batch_begins_with_the_last_end_in_whatever_order_ends_are_reported(order: tuple[int, ...]) -> None:
    t0 = monotonic()
    ends = [t0 + 1.0, t0 + 2.0, t0 + 3.0]

    async def send() -> list[tuple[int, float]]:
        sent = Submitted()
        requests = [WireRequest(index, None, b"") for index in range(5)]
        pacing = Batches(cast(Any, sent), requests, t0, 3)
        pacing.start()
        await sent.began.wait()
        for index in order:
            pacing.ended(RawResponse(index, t0, t0, ends[index], []))
        pacing.close()
        return sent

    assert asyncio.run(send()) == [(0, t0), (1, t0), (2, t0), (3, max(ends)), (4, max(ends))]
