"""Loads for a mock server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from harness.loadgen.load_plan import LoadPlan, Target, WireRequest

INPUT_TOKENS, OUTPUT_TOKENS = 7, 12


def make_plan(
    server: Any,
    behaviours: Sequence[dict[str, Any]],
    *,
    every_s: float = 0.004,
    concurrency: int | None = None,
    timeout_s: float = 60.0,
) -> LoadPlan:
    """One request for each behaviour, `every_s` seconds apart where the loop is open."""
    asked = {"prompt": [1] * INPUT_TOKENS, "max_tokens": OUTPUT_TOKENS}
    requests = [
        WireRequest(
            index,
            None if concurrency else index * every_s,
            msgspec.json.encode({**asked, "user": str(index), "behaviour": behaviour}),
        )
        for index, behaviour in enumerate(behaviours)
    ]
    target = Target("127.0.0.1", server.port, "/v1/completions")
    return LoadPlan(target, requests, concurrency=concurrency, timeout_s=timeout_s)
