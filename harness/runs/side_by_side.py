"""Several blocks at once, each on machines of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from harness.runs.block import Following, measure_block
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


def measure_blocks(
    run: Run,
    resolved: Resolved,
    divided: Sequence[Sequence[Block]],
    notify: Notify,
    following: Following = lambda cell, summary: None,
) -> None:
    """Measure what is left of every block.

    Args:
        divided: The blocks for each set of machines; for as many sets as there are, at most.
        following: As in `measure_block`; called by several threads.

    Raises:
        CleanupError: As `measure_block`; what the other sides measured so far is kept.
    """
    if len(divided) == 1:
        for block in divided[0]:
            measure_block(run, resolved, block, notify, following)
        return
    testbeds = resolved.machines.testbeds
    lock = threading.Lock()

    def notify_in_turn(event: Event) -> None:
        with lock:
            notify(event)

    def measure(side: int, own: Sequence[Block]) -> None:
        for block in own:
            if run.is_ending:
                return
            measure_block(run, resolved, block, notify_in_turn, following, side)

    with ThreadPoolExecutor(len(divided)) as threads:
        measuring = [threads.submit(measure, side, own) for side, own in enumerate(divided)]
        try:
            for done in as_completed(measuring):
                done.result()
        except BaseException:
            run.end_early()
            for testbed in testbeds:
                testbed.abandon()
            raise
