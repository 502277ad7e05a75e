"""Several blocks at once, each on machines of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from harness.runs.block import measure_block
from harness.runs.events import Event, Notify
from harness.runs.resolved import Resolved
from harness.runs.run_state import Run
from harness.runs.schedule import Block


def sides(blocks: Sequence[Block], count: int) -> list[list[Block]]:
    """Which blocks each of `count` sets of machines measures, in their order.

    A repeat of all engines stays together, so that a difference between machines is none between engines;
    repeats go to the sides in turn.
    """
    return [[block for block in blocks if block.cells[0].repeat % count == side] for side in range(count)]


def measure_blocks(run: Run, resolved: Resolved, blocks: Sequence[Block], notify: Notify) -> None:
    """Measure what is left of every block, on as many machines at once as there are for it.

    Raises:
        CleanupError: As `measure_block`; what the other sides measured so far is kept.
    """
    testbeds = resolved.machines.testbeds
    if len(testbeds) == 1:
        for block in blocks:
            measure_block(run, resolved, block, notify)
        return
    stop, one_at_a_time = threading.Event(), threading.Lock()

    def tell(event: Event) -> None:
        with one_at_a_time:
            notify(event)

    def measure(side: int, own: Sequence[Block]) -> None:
        for block in own:
            if stop.is_set():
                return
            measure_block(run, resolved, block, tell, side=side)

    with ThreadPoolExecutor(len(testbeds)) as threads:
        divided = sides(blocks, len(testbeds))
        measuring = [threads.submit(measure, side, own) for side, own in enumerate(divided)]
        try:
            for done in as_completed(measuring):
                done.result()
        except BaseException:
            stop.set()
            for testbed in testbeds:
                testbed.abandon()
            raise
