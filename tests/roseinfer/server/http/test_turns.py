"""Whose turn it is: who has had least time, however many wait."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from roseinfer.server.http.turns import ROUND, TURN, Turn, Turns
from tests.roseinfer.server.clients import in_loop
from tests.roseinfer.server.http.in_process import until


class Work:
    """Waits again and again; each turn takes `seconds`, by a clock that only turns move."""

    def __init__(self, turns: Turns, now: list[float], seconds: float, order: list[Work]) -> None:
        self.turns, self.now, self.seconds, self.order = turns, now, seconds, order
        self.turn = Turn(self.take)
        self.remaining = 0

    def take(self, end: float) -> None:
        assert end == self.now[0] + TURN
        self.now[0] += self.seconds
        self.order.append(self)
        self.remaining -= 1
        if self.remaining:
            self.turns.wait(self.turn)


class Scene:
    def __init__(self) -> None:
        self.now = [100.0]
        self.turns = Turns(lambda: self.now[0])
        self.order: list[Work] = []

    def work(self, seconds: float, turns: int) -> Work:
        work = Work(self.turns, self.now, seconds, self.order)
        work.remaining = turns
        return work


@pytest.fixture
def scene() -> Scene:
    return Scene()


@in_loop
async def test_alone_it_is_taken_at_once(scene: Scene) -> None:
    work = scene.work(0.001, 1)
    scene.turns.ask(work.turn)
    assert scene.order == [work]


@in_loop
async def test_time_is_shared_evenly(scene: Scene) -> None:
    """Not turns: one whose turns are twice as long has half as many."""
    short, long = scene.work(0.001, 90), scene.work(0.002, 90)
    scene.turns.wait(short.turn)
    scene.turns.wait(long.turn)
    await until(lambda: len(scene.order) >= 60)
    first = scene.order[:60]
    assert 38 <= first.count(short) <= 42


@in_loop
async def test_a_new_one_is_the_next(scene: Scene) -> None:
    """And one that has had much time while nobody waited comes as soon as those that have had theirs."""
    old = scene.work(5.0, 1)
    scene.turns.ask(old.turn)
    many = [scene.work(0.001, 1000) for _ in range(50)]
    for each in many:
        scene.turns.wait(each.turn)
    await until(lambda: len(scene.order) > 100)
    new, before = scene.work(0.001, 1), len(scene.order)
    scene.turns.ask(new.turn)
    await until(lambda: new in scene.order)
    assert scene.order.index(new) == before
    old.remaining = 1
    before = len(scene.order)
    scene.turns.ask(old.turn)
    await until(lambda: scene.order.count(old) == 2)
    assert scene.order[before:].index(old) <= 1


@in_loop
async def test_the_event_loop_has_its_time(scene: Scene) -> None:
    """Between two rounds, and where many ask one after the other."""
    works = [scene.work(0.0005, 1) for _ in range(40)]
    for each in works:
        scene.turns.ask(each.turn)
    assert 0 < len(scene.order) <= 2 * ROUND / 0.0005
    rounds = [len(scene.order)]
    while len(scene.order) < 40:
        await asyncio.sleep(0)
        rounds.append(len(scene.order))
    assert max(b - a for a, b in itertools.pairwise(rounds)) <= 2 * (ROUND / 0.0005 + 1)


@in_loop
async def test_one_that_has_closed_is_not_called(scene: Scene) -> None:
    work, other = scene.work(0.001, 5), scene.work(0.001, 5)
    scene.turns.wait(work.turn)
    scene.turns.wait(other.turn)
    work.turn.cancel()
    await until(lambda: scene.order.count(other) == 5)
    assert work not in scene.order
