"""A server that answers quickly and wrongly, from the question to the report's reasons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.compare.stored_run import StoredRun
from harness.fairness.answer_check import LENGTHS
from harness.runs.events import CellDone
from harness.runs.folder import ANSWERS
from harness.schema.facts import Fact
from harness.schema.online_settings import OnlineSettings
from tests.harness.measured import resume_online, run_online

from .conftest import Watcher, edit


def run_quickly(url: str, folder: Path, **given: Any) -> tuple[Path, Any]:
    quick: dict[str, Any] = {"max_model_len": 1024, "n": 3, "scales": [0.01], "warmup": 0, "calibrate": False}
    quick["accuracy"] = False
    return run_online(OnlineSettings(base_url=url, out=folder, **(quick | given)), ["bench"], lambda _: None)


def test_an_engine_that_answers_wrongly_wins_nothing(start_mock: Any, tmp_path: Path) -> None:
    folder, results = run_quickly(start_mock().url, tmp_path, model="random:gpt2-tiny", engines="openai")
    assert results.answers is not None
    [check] = results.answers.checks
    assert check.verdict == "wrong" and results.answers.wrong == {"openai": check.reason}
    assert [answer.prompt_tokens for answer in check.answers] == [*LENGTHS, *LENGTHS]
    assert {answer.outcome for answer in check.answers} == {"different"}
    assert {answer.got for answer in check.answers} == {16}
    assert "float32" in results.answers.reference and results.answers.tolerance > 0
    for summary in results.summaries:
        assert summary.num_error == 0 and not summary.valid
        assert summary.invalid_reasons[-1].kind == check.reason.kind == "wrong_answers"
        assert summary.invalid_reasons[-1].values == check.reason.values

    assert StoredRun.read(folder).invalid("openai")[0] == f"openai: {check.reason}"

    before = (folder / ANSWERS).read_bytes()
    assert resume_online(folder, lambda _: None)[1] == results
    assert (folder / ANSWERS).read_bytes() == before


def test_a_server_whose_model_nobody_knows_is_judged_by_lengths_alone(
    start_mock: Any, tmp_path: Path
) -> None:
    folder, results = run_quickly(start_mock().url, tmp_path / "right")
    [check] = results.answers.checks
    assert (check.verdict, check.reason) == (
        "unknown",
        Fact(kind="unchecked_answers", values={"unknown": 12, "answers": 12}),
    )
    assert results.answers.reference is None
    kinds = {reason.kind for summary in results.summaries for reason in summary.invalid_reasons}
    assert "wrong_answers" not in kinds and "failed_answers" not in kinds

    replies = json.loads((folder / ANSWERS).read_text())  # as when the run ends before the verdict
    (folder / ANSWERS).write_text(json.dumps(replies | {"judged": None}))
    assert resume_online(folder, lambda _: None)[1] == results


def test_a_run_that_ended_before_its_verdict_is_judged_without_engine_and_gpu(
    start_mock: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def reference(python: Path, model: Path, device: str, dtype: str, *rest: Any) -> str:
        asked.append((device, dtype))
        if len(asked) == 1:
            raise KeyboardInterrupt
        return "the test has none"

    monkeypatch.setattr("harness.runs.answers.ask_reference", reference)
    monkeypatch.setattr("harness.telemetry.gpu.available", lambda: False)
    server = start_mock()
    with pytest.raises(KeyboardInterrupt):
        run_quickly(server.url, tmp_path, model="random:gpt2-tiny", engines="openai", dtype="bf16")
    server.end()
    [folder] = tmp_path.glob("online_*")
    edit(folder / "run.json", lambda info: info["settings"].update(device="cuda"))
    _, results = resume_online(folder, watch := Watcher())
    assert asked == [("cpu", "bfloat16")] * 2 and not watch.of(CellDone)
    assert results.answers is not None and "the test has none" in results.answers.rule
    [check] = results.answers.checks
    assert (check.label, check.verdict) == ("openai", "unknown") and len(check.answers) == 2 * len(LENGTHS)


@pytest.mark.parametrize(
    "given",
    [{"check_answers": False}, {"max_model_len": 16, "concurrency": 1, "input_len": 4, "output_len": 4}],
)
def test_a_check_that_is_not_wanted_or_does_not_fit_asks_nothing(
    start_mock: Any, tmp_path: Path, given: dict[str, Any]
) -> None:
    folder, results = run_quickly(start_mock().url, tmp_path, **given)
    assert results.answers is None and not (folder / ANSWERS).exists()
