"""Requests of a job are sent when the answers that they need have ended, and no sooner."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.loadgen.client import Client
from harness.loadgen.load_plan import RawResponse, WireRequest
from harness.loadgen.pacing import ClosedLoop, OpenLoop
from harness.loadgen.system_limits import most_in_flight


@dataclass
class FakeClient(Client):
    """Notes what is sent, and when it was due."""

    due: dict[int, float] = field(default_factory=dict)
    open: list[int] = field(default_factory=list)
    handshake_s: float = 0.0

    def submit(self, index: int, t_sched: float, late_s: float | None = None) -> None:
        assert index not in self.due
        self.due[index] = t_sched
        self.open.append(index)

    def open_ahead(self, count: int, at_once: int = 0) -> None:
        pass


@st.composite
def graphs(draw: st.DrawFn) -> list[WireRequest]:
    """Jobs of which each request needs some of those before it; the first needs none."""
    requests: list[WireRequest] = []
    for job, size in enumerate(draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))):
        begin = len(requests)
        for place in range(size):
            needs = draw(st.sets(st.integers(begin, begin + place - 1))) if place else set()
            after, think_s = tuple(sorted(needs)), 0.0 if place else None
            requests.append(WireRequest(begin + place, None, b"", after, think_s, session=job))
    return requests


def serve(requests: Sequence[WireRequest], concurrency: int | None, order: st.DataObject) -> list[int]:
    """End what is open in any order, and return the order in which requests were sent.

    Asserts that no request was sent before those that it needs had ended, nor due before.
    """
    client, ends = FakeClient(), dict[int, float]()

    async def run() -> None:
        loop = OpenLoop(client, requests, 1.0) if concurrency is None else None
        pacing = loop or ClosedLoop(client, requests, 0.0, concurrency or 1)
        pacing.start()
        await asyncio.sleep(0)
        for _ in range(1000):
            if client.open:
                break
            await asyncio.sleep(0.001)
        while client.open:
            if concurrency is not None:
                jobs = {requests[index].session for index in client.open}
                assert len(jobs) <= concurrency
                assert len(client.open) <= most_in_flight(requests, concurrency, 1.0)
            index = client.open.pop(order.draw(st.integers(0, len(client.open) - 1)))
            ends[index] = client.due[index]
            before = set(client.due)
            pacing.ended(RawResponse(index, client.due[index], 0.0, ends[index], []))
            for other in set(client.due) - before:
                assert all(need in ends for need in requests[other].after)
                if requests[other].after:
                    assert client.due[other] == max(ends[need] for need in requests[other].after)
        pacing.close()

    asyncio.run(run())
    return list(client.due)


@given(requests=graphs(), concurrency=st.integers(1, 3), order=st.data())
def test_no_request_is_sent_before_what_it_needs(requests, concurrency, order):
    sent = serve(requests, concurrency, order)
    assert sorted(sent) == list(range(len(requests)))


@given(requests=graphs(), order=st.data())
def test_jobs_of_a_rate_are_graphs_too(requests, order):
    timed = [
        WireRequest(r.index, 0.0 if r.think_s is None else None, b"", r.after, r.think_s, session=r.session)
        for r in requests
    ]
    assert sorted(serve(timed, None, order)) == list(range(len(requests)))


@pytest.mark.parametrize("concurrency", [1, 4])
def test_calls_beside_each_other_need_as_many_connections(concurrency: int) -> None:
    fan = [(), (0,), (0,), (0,), (1, 2, 3)]
    requests = [
        WireRequest(i, None, b"", after, 0.0 if i else None, session=0) for i, after in enumerate(fan)
    ]
    assert most_in_flight(requests, concurrency, 1.0) == 3
