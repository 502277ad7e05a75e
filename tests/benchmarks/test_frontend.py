"""`benchmarks.frontend`, small: real front ends, real clients, an engine that computes nothing."""

from __future__ import annotations

import pytest

from benchmarks.frontend import measure
from roseinfer.server.config import ServerConfig

pytestmark = pytest.mark.integration


def test_every_token_arrives_and_costs_something() -> None:
    cost = measure(ServerConfig(frontend_processes=2), clients=8, tokens=40, rounds=3, step_ms=1)
    assert cost.front_ends == 2 and cost.tokens == 8 * 40 * 3
    assert cost.front_end_us > 0 and cost.floor_us > 0
    assert any(line.startswith("Floor: ") for line in cost.lines())
