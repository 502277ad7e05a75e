"""A torch profile of the engine, over its routes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

PROMPT = [5, 6, 7]


def test_profile_holds_the_steps_asked_for(serving: Any, tmp_path: Path) -> None:
    started = serving.request("/start_profile", {"output_dir": str(tmp_path / "made"), "num_steps": 3})
    assert started.status == 200
    assert serving.complete(PROMPT, max_tokens=8, ignore_eos=True).status == 200
    assert serving.request("/stop_profile", method="POST").status == 200
    (trace,) = (tmp_path / "made").iterdir()
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    forwards = [event["name"] for event in events if ".model" in event.get("name", "")]
    assert len(forwards) == 3
    assert forwards.count("roseinfer.prefill_batch.model_forward") == 1


def test_profiles_that_cannot_be(serving: Any, tmp_path: Path) -> None:
    assert serving.request("/start_profile", {"output_dir": 5}).status == 400
    assert serving.request("/start_profile", {"output_dir": str(tmp_path), "num_steps": 0}).status == 400
    nowhere = serving.request("/start_profile", {"output_dir": "/proc/nowhere"})
    assert nowhere.status == 400 and "/proc/nowhere" in nowhere.json["error"]["message"]
    assert serving.request("/start_profile", {"output_dir": str(tmp_path)}).status == 200
    twice = serving.request("/start_profile", {"output_dir": str(tmp_path)})
    assert twice.status == 400 and "/stop_profile" in twice.json["error"]["message"]
    assert serving.request("/stop_profile", method="POST").status == 200
    assert serving.request("/stop_profile", method="POST").status == 200
