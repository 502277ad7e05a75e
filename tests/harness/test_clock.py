"""The alarm rings once for each time that is set: not before it, and immediately when it has passed."""

from __future__ import annotations

import asyncio
from time import monotonic

import uvloop

from harness.clock import Alarm


def test_it_rings_in_order_and_never_early() -> None:
    async def run() -> list[tuple[float, float]]:
        rings: list[tuple[float, float]] = []
        start = monotonic()
        due = [start - 1.0, start, start + 0.0005, start + 0.0123, start + 0.0124]
        done = asyncio.Event()

        def ring() -> None:
            rings.append((due[len(rings)], monotonic()))
            if len(rings) < len(due):
                alarm.set(due[len(rings)])
            else:
                done.set()

        alarm = Alarm(asyncio.get_running_loop(), ring)
        alarm.set(due[0])
        await asyncio.wait_for(done.wait(), 30)
        alarm.close()
        return rings

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        rings = runner.run(run())
    assert len(rings) == 5
    assert all(at >= due for due, at in rings)


def test_a_later_setting_replaces_an_earlier_one() -> None:
    async def run() -> float:
        rang: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        alarm = Alarm(asyncio.get_running_loop(), lambda: rang.set_result(monotonic()))
        start = monotonic()
        alarm.set(start + 0.005)
        alarm.set(start + 0.03)
        at = await asyncio.wait_for(rang, 30)
        alarm.close()
        return at - start

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run()) >= 0.03
