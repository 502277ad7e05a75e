"""Invariants of dealing a load to clients, and of what it needs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.loadgen.load_plan import LoadPlan, Target, WireRequest
from harness.loadgen.run_load import deal
from harness.loadgen.system_limits import most_in_flight

TARGET = Target("127.0.0.1", 1, "/")


@given(count=st.integers(1, 60), clients=st.integers(1, 9), concurrency=st.none() | st.integers(1, 70))
def test_every_request_goes_to_one_client(count: int, clients: int, concurrency: int | None) -> None:
    plan = LoadPlan(TARGET, [WireRequest(i, None, b"") for i in range(count)], concurrency=concurrency)
    shares = deal(plan, clients)
    dealt = sorted(request.index for share in shares for request in share.requests)
    assert dealt == list(range(count))
    assert len(shares) <= clients and all(share.requests for share in shares)
    if concurrency is not None:
        assert sum(share.concurrency or 0 for share in shares) == concurrency
        assert all(share.concurrency for share in shares)
    else:
        assert max(len(s.requests) for s in shares) - min(len(s.requests) for s in shares) <= 1


@given(sessions=st.lists(st.integers(0, 6), min_size=1, max_size=40), clients=st.integers(1, 5))
def test_a_session_stays_with_one_client_in_its_order(sessions: list[int], clients: int) -> None:
    last: dict[int, tuple[int]] = {}
    requests = []
    for index, session in enumerate(sessions):
        requests.append(WireRequest(index, float(index), b"", last.get(session, ()), session=session))
        last[session] = (index,)
    shares = deal(LoadPlan(TARGET, requests), clients)
    held = [[request.index for request in share.requests] for share in shares]
    assert sorted(index for share in held for index in share) == list(range(len(sessions)))
    assert held == [sorted(share) for share in held] and all(held)
    theirs = [{sessions[index] for index in share} for share in held]
    assert sum(map(len, theirs)) == len(last) and max(map(len, theirs)) - min(map(len, theirs)) <= 1


@given(times=st.lists(st.integers(0, 50), min_size=1, max_size=40), window=st.integers(0, 60))
def test_connections_needed_are_the_requests_of_the_fullest_window(times: list[int], window: int) -> None:
    requests = [WireRequest(i, float(t), b"") for i, t in enumerate(times)]
    fullest = max(sum(start <= t <= start + window for t in times) for start in times)
    assert most_in_flight(requests, None, float(window)) == fullest
    assert most_in_flight(requests, 3, float(window)) == min(3, len(times))


@given(turns=st.integers(1, 9), sessions=st.integers(1, 9), thinks=st.booleans())
def test_a_session_needs_one_connection(turns: int, sessions: int, thinks: bool) -> None:
    requests = [
        WireRequest(
            index,
            None if thinks and index >= sessions else float(index),
            b"",
            after=(index - sessions,) if index >= sessions else (),
            session=index % sessions,
            think_s=1.0 if thinks and index >= sessions else None,
        )
        for index in range(turns * sessions)
    ]
    assert most_in_flight(requests, None, 1e9) == sessions
