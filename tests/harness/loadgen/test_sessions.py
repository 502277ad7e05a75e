"""A turn of a session is sent at its time, but never before the answer to the turn before it has ended."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from harness.loadgen.load_plan import LoadPlan
from harness.loadgen.run_load import run_load

from .conftest import make_plan


def in_sessions(plan: LoadPlan, sessions: int) -> LoadPlan:
    """Request j belongs to session j mod `sessions`."""
    requests = [
        msgspec.structs.replace(
            r, after=(r.index - sessions,) if r.index >= sessions else (), session=r.index % sessions
        )
        for r in plan.requests
    ]
    return msgspec.structs.replace(plan, requests=requests)


@pytest.mark.parametrize("clients", [1, 2])
def test_turns_wait_for_the_answer_before_them(shared_mock: Any, clients: int) -> None:
    """An answer takes 15 ms, the turns of session 0 come each 12 ms; session 1 has a slow answer, session 2
    one that fails."""
    behaviours: list[dict[str, Any]] = [{} for _ in range(30)]
    behaviours[4], behaviours[5] = {"ttft_ms": 150}, {"cut_after": 2, "ttft_ms": 60}
    plan = in_sessions(make_plan(shared_mock, behaviours, every_s=0.004), sessions=3)
    result = run_load(plan, clients=clients, start_delay_s=0.1)
    responses = result.responses
    assert len(responses) == 30 and sum(r.error is not None for r in responses) == 1
    for request, response in zip(plan.requests, responses, strict=True):
        own_time = result.t0 + (request.t_sched_s or 0.0)
        assert response.t_sent is not None and response.t_sent >= response.t_sched
        if not request.after:
            assert response.late_s is None and response.t_sched == pytest.approx(own_time, abs=1e-6)
            continue
        before = responses[request.after[0]]
        assert before.t_end is not None and before.t_end <= response.t_sent
        assert response.late_s is not None
        assert response.late_s == pytest.approx(max(0.0, before.t_end - own_time), abs=1e-6)
        assert response.t_sched == pytest.approx(own_time + response.late_s, abs=1e-6)
        assert response.client == before.client
    held = {index: responses[index].late_s or 0.0 for index in (7, 8)}
    assert held[7] > 0.13 and held[8] > 0.04  # as long as the answers take; more on a busy machine


def test_turns_that_are_in_time_are_not_moved(shared_mock: Any) -> None:
    plan = in_sessions(make_plan(shared_mock, [{"tokens": 1}] * 6, every_s=0.5), sessions=2)
    result = run_load(plan, start_delay_s=0.1)
    assert [response.late_s for response in result.responses] == [None, None, 0, 0, 0, 0]
    offsets = [response.t_sched - result.t0 for response in result.responses]
    assert offsets == pytest.approx([request.t_sched_s for request in plan.requests], abs=1e-6)
