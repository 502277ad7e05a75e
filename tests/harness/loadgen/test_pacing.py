"""When the next requests are sent, given what the client reports of those before."""

from __future__ import annotations

import asyncio
from itertools import permutations
from time import monotonic
from typing import Any, cast

import pytest

from harness.loadgen.client import Client
from harness.loadgen.load_plan import LoadPlan, RawResponse, Target, WireRequest
from harness.loadgen.pacing import AT_ONCE, SPARE, Batches, OpenLoop


class Submitted(list[tuple[int, float]]):
    """A client that only notes each request and the time at which it was to be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.began = asyncio.Event()

    def open_ahead(self, count: int, at_once: int = 0) -> None:
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


@pytest.mark.integration
@pytest.mark.parametrize(("due_s", "opened"), [(0.2, AT_ONCE), (100.0, SPARE)])
def test_slow_handshakes_open_few_connections_at_a_time(due_s: float, opened: int) -> None:
    """Three handshakes before hundreds of requests, not all of their connections are opened at once."""

    async def open_ahead() -> int:
        requests = [WireRequest(index, due_s, b"") for index in range(300)]
        client = Client(LoadPlan(Target("127.0.0.1", 9, "/"), requests), [["127.0.0.1"]], {}, lambda _: None)
        client.handshake_s = 0.1
        pacing = OpenLoop(client, requests, monotonic())
        pacing.start()
        pacing.close()
        client.close()
        return len(client._opening)

    assert asyncio.run(open_ahead()) == opened
