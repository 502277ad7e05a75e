"""How often the worker of an in-process API generates the batch, and which of that is timed."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from harness.engines import run_worker


class Engine:
    """Takes a second a batch, and twice as long for the first two."""

    def __init__(self) -> None:
        self.now = 0.0
        self.generated: list[list[list[int]]] = []

    def generate(self, prompts: list[list[int]], limits: list[int], ignore_eos: bool) -> list[list[int]]:
        self.now += 2 if len(self.generated) < 2 else 1
        self.generated.append(prompts)
        return [[0] * limit for limit in limits]


@pytest.mark.parametrize(
    ("settle_s", "min_s", "settled", "seconds"), [(0, 0, 0, 2), (0, 3, 0, 3), (3, 0, 2, 1), (3, 5, 2, 5)]
)
def test_a_batch_is_settled_and_then_timed(tmp_path, monkeypatch, settle_s, min_s, settled, seconds):
    engine = Engine()
    monkeypatch.setattr(run_worker, "load", lambda target: lambda **arguments: engine)
    monkeypatch.setattr(time, "monotonic", lambda: engine.now)
    warmup, batch = [[7]], [[1, 2], [3]]
    job: dict[str, Any] = {"target": "x:Engine", "arguments": {}, "ignore_eos": True}
    job |= {"warmup": warmup, "warmup_limits": [1], "prompts": batch, "prompt_limits": [4, 5]}
    (tmp_path / "job").write_text(json.dumps(job | {"settle_s": settle_s, "min_s": min_s}))
    run_worker.main(str(tmp_path / "job"), str(tmp_path / "result"))
    batches = json.loads((tmp_path / "result").read_text())["batches"]
    assert sum(timed["end"] - timed["begin"] for timed in batches) == seconds
    assert [timed["output_tokens"] for timed in batches] == [[4, 5]] * len(batches)
    assert engine.generated == [warmup] + [batch] * (settled + len(batches))
