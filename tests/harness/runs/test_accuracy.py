"""The accuracy task of a run, from the question to the results."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from harness.fairness.task import make_items
from harness.models.model_folder import resolve
from harness.runs import accuracy
from harness.runs.folder import ACCURACY
from harness.schema.online_settings import OnlineSettings
from tests.harness.measured import resume_online, run_online


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder of the user's, of whose weights nothing says that they are random."""
    return Path(shutil.copytree(resolve("random:gpt2-tiny").path, tmp_path / "model"))


def measured(url: str, folder: Path, **given: Any) -> tuple[Path, Any]:
    quick: dict[str, Any] = {"concurrency": 64, "n": 3, "input_len": 8, "output_len": 4, "warmup": 0}
    quick |= {"calibrate": False, "check_answers": False, "engines": "openai", "max_model_len": 1024}
    return run_online(OnlineSettings(base_url=url, out=folder, **(quick | given)), ["bench"], lambda _: None)


def test_a_server_that_says_anything_scores_nothing(start_mock: Any, tmp_path: Path, model: Path) -> None:
    server = start_mock("--ttft-ms", "1", "--itl-ms", "0.1")
    folder, results = measured(server.url, tmp_path / "runs", model=str(model), repeats=2)
    [score] = results.accuracy.scores
    assert (score.label, score.right, score.items, score.failed) == ("openai", 0, len(make_items()), 0)
    assert score.ci[0] == 0 < score.ci[1] < 0.02
    assert score.perplexity is None and score.below is None
    assert {(summary.accuracy, summary.accuracy_ci) for summary in results.summaries} == {(0.0, score.ci)}
    kinds = {reason.kind for summary in results.summaries for reason in summary.invalid_reasons}
    assert "inaccurate" not in kinds  # nobody is better
    asked = [request for request in server.served_requests if request.status == 200]
    assert len(asked) >= 2 * 3 + len(make_items())
    before = (folder / ACCURACY).read_bytes()
    assert resume_online(folder, lambda _: None)[1] == results
    assert (folder / ACCURACY).read_bytes() == before


def test_a_model_whose_tokenizer_is_of_another_form_is_not_asked(
    start_mock: Any, tmp_path: Path, model: Path
) -> None:
    (model / "tokenizer.json").unlink()
    (model / "tokenizer.model").touch()
    folder, results = measured(start_mock().url, tmp_path / "runs", model=str(model))
    assert results.accuracy is None and not (folder / ACCURACY).exists() and results.skipped == []


@pytest.mark.parametrize("given", [{"model": "random:gpt2-tiny"}, {"accuracy": False}, {"max_model_len": 32}])
def test_where_it_says_nothing_it_is_not_asked(
    start_mock: Any, tmp_path: Path, model: Path, given: dict[str, Any]
) -> None:
    folder, results = measured(start_mock().url, tmp_path / "runs", **({"model": str(model)} | given))
    assert results.accuracy is None and not (folder / ACCURACY).exists()
    assert all(summary.accuracy is None for summary in results.summaries)


def test_a_server_with_too_much_to_do_has_no_score(
    start_mock: Any, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.fairness.asking.PAUSES_S", ())
    script = tmp_path / "script.json"
    script.write_text(json.dumps([*[{}] * 40, {"status": 429}]))
    server = start_mock("--script", str(script), "--ttft-ms", "1", "--itl-ms", "0.1")
    _, results = measured(server.url, tmp_path / "runs", model=str(model), concurrency=3)
    assert results.accuracy is None and len(results.summaries) == 2
    [fault] = results.meta.unasked
    assert fault.what == ["accuracy"] and "items: http_429: Too Many Requests" in fault.reason


@pytest.mark.parametrize(("logprob", "perplexity"), [(-1.0, pytest.approx(math.e)), (-9999.0, None)])
def test_a_perplexity_that_is_no_number_is_none(
    monkeypatch: pytest.MonkeyPatch, logprob: float, perplexity: float | None
) -> None:
    choices = [{"logprobs": {"token_logprobs": [None, logprob, logprob]}}]
    monkeypatch.setattr(accuracy, "request", Mock(return_value=(200, json.dumps({"choices": choices}))))
    assert accuracy._perplexity(Mock(served_name="m"), [1, 2, 3], 64) == perplexity
