"""An event loop that stays awake."""

from __future__ import annotations

import asyncio
from itertools import count

from roseinfer.server.engine_client import Spinner


async def turns_until_it_sleeps(seconds: float) -> int:
    """Count the loop's turns before it had nothing left to do, after a touch."""
    spinner = Spinner(seconds, count(100.0).__next__)  # a second passes between two looks at the clock
    spinner.touch()
    turns = 0
    while spinner.awake:
        turns += 1
        await asyncio.sleep(0)
    return turns


def test_a_touched_loop_turns_for_a_while() -> None:
    assert asyncio.run(turns_until_it_sleeps(5)) == 5


def test_without_a_while_it_sleeps_at_once() -> None:
    assert asyncio.run(turns_until_it_sleeps(0)) == 0
