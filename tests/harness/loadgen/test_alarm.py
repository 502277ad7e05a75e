"""The alarm rings once for each time that is set: not before it, and immediately when it has passed."""

from __future__ import annotations

import asyncio
from time import monotonic

import uvloop

from harness.loadgen.pacing import Alarm


def test_it_rings_in_order_and_never_early() -> None:
    """A time that is set replaces the one before, be it earlier or later."""
    rings: list[tuple[float, float]] = []

    async def run() -> None:
        start = monotonic()
        due = [start - 1.0, start, start + 0.0005, start + 0.0123, start + 0.0124, start + 0.03]
        done = asyncio.Event()

        def set_next() -> None:
            for when in (monotonic() + 0.002, start + 60, due[len(rings)]):
                alarm.set(when)

        def ring() -> None:
            rings.append((due[len(rings)], monotonic()))
            done.set() if len(rings) == len(due) else set_next()

        alarm = Alarm(asyncio.get_running_loop(), ring)
        set_next()
        await asyncio.wait_for(done.wait(), 30)
        alarm.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    assert len(rings) == 6 and all(at >= due for due, at in rings)
