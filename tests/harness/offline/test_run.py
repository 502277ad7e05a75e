"""`bench offline` with the real roseinfer: through its server and in the worker's process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.engines.base import Contender, EngineSettings
from harness.engines.registry import LOCAL
from harness.engines.variants import Variant
from harness.errors import EngineError, UsageError
from harness.models import resolve
from harness.offline.run import Measuring, run_offline
from harness.offline.worker import Batch, through_worker
from harness.spec.results import OfflineResults
from harness.spec.settings import EngineRef, OfflineSettings
from harness.workload import closed_loop


def test_both_ways_are_measured_and_saved(tmp_path: Path):
    settings = OfflineSettings(
        engines="roseinfer,openai", model="random:gpt2-tiny", device="cpu", dtype="fp32", out=tmp_path,
        num_prompts=3, input_len=20, output_len=4, max_model_len=64,
    )  # fmt: skip
    events: list[object] = []
    folder, results = run_offline(settings, ["bench", "offline"], events.append)
    assert [row.label for row in results.results] == ["roseinfer", "roseinfer (in-process)"]
    assert all(row.completion_tokens == 12 and row.total_s > 0 for row in results.results)
    assert [skip.label for skip in results.skipped] == ["openai"]
    assert [event.index for event in events if isinstance(event, Measuring)] == [0, 1]
    saved = OfflineResults.model_validate_json((folder / "offline_results.json").read_bytes())
    assert saved == results
    assert [launch.label for launch in saved.meta.launches] == ["roseinfer", "roseinfer (in-process)"]
    assert saved.meta.versions.roseinfer
    run = json.loads((folder / "run.json").read_text())
    assert (run["settings"]["device"], run["settings"]["warmup"]) == ("cpu", 3)


def test_a_worker_that_fails_shows_its_last_lines(tmp_path: Path):
    variant = Variant(label="x", offline={"no_such_setting": 1})
    who = Contender(EngineRef.model_validate("roseinfer@x"), variant, "roseinfer (x)")
    model = resolve("random:gpt2-tiny").path
    settings = EngineSettings(who, model, "m", "cpu", "fp32", 64)
    batch = Batch(closed_loop(1, 4, 2, 100, 0), [], 2, True)
    with pytest.raises(EngineError, match=r"(?s)exit code 1.*no_such_setting"):
        through_worker(LOCAL["roseinfer"], settings, "roseinfer (x)", batch, tmp_path / "x.log")


def test_a_batch_beyond_the_context(tmp_path: Path):
    settings = OfflineSettings(
        engines="roseinfer", model="random:gpt2-tiny", out=tmp_path, input_len=1000, output_len=100
    )
    with pytest.raises(UsageError, match="do not fit a context of 1024"):
        run_offline(settings, [], lambda event: None)
    assert list(tmp_path.iterdir()) == []


def test_no_engine_at_all(tmp_path: Path):
    settings = OfflineSettings(engines="openai", model="random:gpt2-tiny", out=tmp_path)
    with pytest.raises(UsageError, match="no engine can be measured"):
        run_offline(settings, [], lambda event: None)
