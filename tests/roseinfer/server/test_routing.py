"""The choice of a replica for a request."""

from __future__ import annotations

from functools import partial

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from roseinfer.server.metrics.counters import Counters
from roseinfer.server.routing import IN_FLIGHT_TOKENS, PrefixOwners, Router

BLOCK = 4
ALL = range(3)


def prompt(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


def test_idle_replicas_take_turns() -> None:
    router = Router([lambda: (0, 0)] * 3, None, BLOCK)
    assert [router.choose(prompt(1), ALL) for _ in range(4)] == [0, 1, 2, 0]
    assert [router.choose(prompt(1), (0, 2)) for _ in range(3)] == [2, 0, 2]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 900)), min_size=2, max_size=5))
def test_the_one_with_the_least_to_do(loads: list[tuple[int, int]]) -> None:
    router = Router([partial(loads.__getitem__, n) for n in range(len(loads))], None, BLOCK)
    work = [in_flight * IN_FLIGHT_TOKENS + waiting for in_flight, waiting in loads]
    assert work[router.choose(prompt(1), range(len(loads)))] == min(work)


def test_a_prefix_draws_requests_until_others_have_less_to_do() -> None:
    loads = [(0, 0)] * 3
    owners = PrefixOwners.create(b"key")
    router, other = (Router([partial(loads.__getitem__, n) for n in ALL], owners, BLOCK) for _ in range(2))
    shared = [*range(40)]
    home = router.choose(prompt(*shared), ALL)
    for index in range(5):
        assert other.choose(prompt(*shared, 100 + index), ALL) == home  # in another front end
    assert router.choose(prompt(*range(50, 90)), ALL) != home
    loads[home] = (0, 39)
    assert router.choose(prompt(*shared, 7), ALL) == home
    loads[home] = (0, 41)
    assert router.choose(prompt(*shared, 7), ALL) != home
    owners.clear()
    assert owners.cached(owners.hashes(prompt(*shared), BLOCK)) == {}


@given(
    st.lists(st.integers(0, 2**31 - 1), max_size=200),
    st.lists(st.integers(0, 2**31 - 1), max_size=40),
    st.integers(1, 8),
)
def test_a_prefix_is_found_as_far_as_it_is_shared(common: list[int], rest: list[int], block: int) -> None:
    """Prefixes that two prompts share, all whole blocks up to the sixteenth, then each sixteenth."""
    owners = PrefixOwners.create(b"key")
    owners.put(owners.hashes(prompt(*common), block), 1)
    whole = owners.hashes(prompt(*common, *rest), block)
    cached_tokens = owners.cached(whole).get(1, 0)
    blocks = len(common) // block
    assert cached_tokens == block * (blocks if blocks < 16 else blocks // 16 * 16)
    assert owners.cached(owners.hashes(prompt(-1, *common), block)) == {}
    assert [tokens for tokens, _ in whole] == sorted({tokens for tokens, _ in whole})


def test_the_last_that_was_given_a_prefix_has_it() -> None:
    owners = PrefixOwners.create(b"key")
    long, short = (owners.hashes(prompt(*range(n)), BLOCK) for n in (40, 20))
    owners.put(long, 0)
    owners.put(short, 63)
    assert owners.cached(long) == {63: 20, 0: 40}


def test_each_front_end_and_replica_is_counted_once() -> None:
    """Two front ends and three replicas, as /metrics and the router read them."""
    first = Counters.create(2, 3)
    second = Counters(first.fd, 2, 1, 3)
    for front_end, counters in enumerate((first, second)):
        for replica in range(3):
            view = counters.of(replica)
            view.set_inflight(10 * replica + front_end)
            view.add_waiting(5, 1, 100 * replica)
            view.add("requests", 1)
    first.set_inflight(1000)
    second.count_closed()
    assert [first.of(replica).load() for replica in range(3)] == [(1, 0), (21, 200), (41, 400)]
    assert second.inflight == 1063
    assert first.waiting(5) == ((6, 600), (6, 600))
    assert (second.count("requests"), second.of(2).count("requests")) == (6, 2)
    assert first.closed() == [0, 1]
    second.of(1).set_silent(True)
    assert first.silent and first.of(1).silent and not first.of(0).silent
