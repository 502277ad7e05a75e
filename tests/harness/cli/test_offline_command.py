"""`bench offline` as a user runs it, with the real engine."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from harness.engines.adapters.roseinfer import Roseinfer
from harness.engines.local import LocalEngine
from harness.errors import CleanupError, EngineError
from harness.files import write_json
from harness.runs.in_process import BatchTimes
from harness.schema.profile import ProfileManifest
from harness.schema.results import OnlineResults
from harness.schema.run_info import LaunchRecord

QUICK = [
    "offline", "--model", "random:gpt2-tiny", "--device", "cpu", "--max-model-len", "64", "--warmup", "0",
    "--num-prompts", "2", "--input-len", "8", "--output-len", "3", "--no-figures",
]  # fmt: skip


def gives(*tokens: int, seconds: float = 1.0) -> Callable[..., tuple[list[BatchTimes], LaunchRecord]]:
    """Measure without an engine."""

    def time_batches(engine: LocalEngine, *_: Any) -> tuple[list[BatchTimes], LaunchRecord]:
        begin = monotonic()
        record = LaunchRecord(
            engine=engine.name, label=engine.display.lower(), version=engine.installed().version
        )
        return [BatchTimes(begin, begin + seconds, list(tokens))], record

    return time_batches


@pytest.fixture
def measures(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], None]:
    """Let an engine that is asked in its own process be measured by a function."""
    monkeypatch.setattr(Roseinfer, "batches_by_server", False)
    return lambda how: monkeypatch.setattr("harness.runs.in_process.time_batches", how)


@pytest.fixture
def measured(measures: Callable[[Callable[..., Any]], None]) -> None:
    """What is tested begins after the measurement."""
    measures(gives(3, 3))


def test_two_runs_are_compared_and_kept(bench, tmp_path, measures):
    runs = []
    for name, seconds in (("before", 1.0), ("after", 0.99)):  # equal ones of one second are copies
        measures(gives(3, 3, seconds=seconds))
        done = bench(*QUICK, "--engines", "roseinfer", "--repeats", "2", "--out", str(tmp_path / name))
        runs.append(str(Path(done.out.strip()).parent.rename(tmp_path / f"{name}_run")))  # of one second
    gate = ("--gate", "output_tok_per_s>=-3%")
    compared = bench("compare", *runs, *gate)
    assert (compared.code, compared.out.splitlines()[-1]) == (0, "verdict: pass"), compared.err
    store = ("--store", str(tmp_path / "history.sqlite"))
    assert bench("history", "add", *runs, *store).code == 0
    judged = bench("history", "gate", runs[1], *gate, *store)
    assert (judged.code, judged.out.splitlines()[-1]) == (0, "verdict: pass"), judged.err
    refused = bench("compare", *runs, "--gate", "ttft_p99<=+10%")
    assert (refused.code, refused.out) == (2, "")
    assert "  hint: it measures req_per_s, output_tok_per_s, total_tok_per_s" in refused.err


def test_a_profile_that_fails_hides_no_result(bench, tmp_path, measured, monkeypatch):
    def refuse(*_: Any) -> None:
        raise EngineError("it does not say how")

    monkeypatch.setattr(Roseinfer, "profiler", refuse)
    done = bench(*QUICK, "--engines", "roseinfer", "--profile", "torch", "--out", str(tmp_path))
    assert done.code == 3
    assert Path(done.out.removesuffix("\n")).is_file()
    assert any("total latency (s)" in line for line in done.err.splitlines())
    message, hint = done.err.splitlines()[-2:]
    assert message == "bench: nothing could be profiled"
    file = Path(done.out.strip()).with_name("profile_manifest.json")
    assert hint == f"  hint: {file} says why"  # nothing was started, so there is no log

    [folder] = tmp_path.iterdir()
    manifest = ProfileManifest.model_validate_json((folder / "profile_manifest.json").read_bytes())
    earlier = manifest.runs[0].model_copy(update={"error": None})
    write_json(folder / "profile_manifest.json", manifest.model_copy(update={"runs": [earlier]}))
    assert bench("profile", str(folder), "--tool", "nsys").code == 3  # whatever was captured before


def test_ctrl_c_within_the_profile_keeps_the_results(bench, tmp_path, measured, monkeypatch):
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("harness.cli.profile.profile_run", interrupted)
    done = bench(*QUICK, "--engines", "roseinfer", "--profile", "torch", "--out", str(tmp_path))
    assert done.code == 130
    report = Path(done.out.removesuffix("\n"))
    assert report.is_file()
    assert done.err.splitlines()[-2:] == [
        "bench: interrupted; the run is measured",
        f"  hint: profile it with `bench profile {report.parent} --tool torch`",
    ]


@pytest.mark.parametrize(
    ("end", "code", "said", "first"),
    [
        (CleanupError("it holds PID 7", "kill -9 7"), 3, "it holds PID 7", "kill -9 7; then "),
        (KeyboardInterrupt(), 130, "interrupted; every finished cell is saved", ""),
    ],
)
def test_a_run_that_ends_early_names_what_it_has(end, code, said, first, bench, tmp_path, measures):
    answers = [gives(3, 3)]

    def measure(*given: Any) -> Any:
        if answers:
            return answers.pop()(*given)
        raise end

    measures(measure)
    done = bench(*QUICK, "--engines", "roseinfer", "--repeats", "4", "--out", str(tmp_path))
    [folder] = tmp_path.iterdir()
    report = folder / "report.html" if code == 130 else None
    assert (done.code, done.out) == (code, f"{report}\n" if report else "")
    assert report is None or report.is_file()
    assert done.err.splitlines()[-2:] == [
        f"bench: {said}",
        f"  hint: {first}finish the run with `bench offline --resume {folder}`",
    ]
    assert (folder / "offline_results.json").is_file() == (code == 130)
    if report is not None:
        stored = OnlineResults.model_validate_json((folder / "offline_results.json").read_bytes())
        assert len(stored.results) == 1 and stored.skipped == [] and stored.meta.interrupted
        assert "1 of 4 cells are measured" in report.read_text()


def test_an_engine_that_fails(bench, tmp_path, measures):
    """The second repeat gives a token too few, then both."""
    answers = [gives(3, 2), gives(3, 3)]
    measures(lambda *given: answers.pop()(*given))
    run = (*QUICK, "--engines", "roseinfer", "--repeats", "2")
    done = bench(*run, "--out", str(tmp_path / "one"), "--json")
    assert done.code == 3
    results = json.loads(done.out)
    assert [(row["label"], row["repeat"]) for row in results["results"]] == [("roseinfer", 0)]
    assert [(fault["label"], fault["repeat"]) for fault in results["skipped"]] == [("roseinfer", 1)]

    measures(gives(2, 3))
    done = bench(*run, "--out", str(tmp_path / "all"))
    [folder] = (tmp_path / "all").iterdir()
    assert (done.code, done.out) == (3, f"{folder / 'report.html'}\n")
    message, hint = done.err.splitlines()[-2:]
    assert message.startswith("bench: nothing could be measured: roseinfer: roseinfer generated a wrong ")
    assert hint.endswith(f"; then finish the run with `bench offline --resume {folder}`")
    for page in ("report.html", "summary.md"):
        assert "generated a wrong number of tokens" in (folder / page).read_text()

    measures(gives(3, 3))
    done = bench("offline", "--resume", str(folder))
    assert (done.code, done.out) == (0, f"{folder / 'report.html'}\n")
    assert "wrong number" not in (folder / "report.html").read_text()


@pytest.mark.slow
def test_killed_and_interrupted_and_resumed_with_a_real_engine(start_bench, bench, tmp_path):
    """No process is left, nothing is measured twice, and each part is reported, as is the whole."""
    first = start_bench(*QUICK, "--model", "auto", "--engines", "roseinfer,openai", "--out", str(tmp_path))
    folder = Path(first.until("run ").removeprefix("run ").partition(": ")[0])
    first.until("output tok/s in", send=signal.SIGKILL)
    killed = first.end()
    assert killed.code == -signal.SIGKILL
    assert first.left() == []
    lines = killed.err.splitlines()
    assert lines[0].startswith(f"run {folder}: ")
    assert lines[1].startswith("skipped openai: it has no in-process API here")
    assert any(re.match(r"\[1/2\] roseinfer( \(in-process\))?, batch of 2 prompts", line) for line in lines)
    kept = (folder / "journal.jsonl").read_bytes()
    assert kept.count(b"\n") == 1

    again = start_bench("offline", "--resume", str(folder))
    assert "2 cells, 1 already measured" in again.until("run ")
    again.until("roseinfer", send=signal.SIGTERM)
    ended = again.end()
    assert (ended.code, ended.out) == (130, f"{folder / 'report.html'}\n")
    assert "1 of 2 cells are measured" in ended.err
    assert again.left() == [] and (folder / "journal.jsonl").read_bytes() == kept

    with (folder / "journal.jsonl").open("ab") as file:
        file.write(b'{"cell":1,"fini')  # what a kill may leave of a line
    moved = folder.rename(tmp_path / "a moved run")
    done = bench("offline", "--resume", str(moved))
    assert (done.code, done.out) == (0, f"{moved / 'report.html'}\n"), done.err
    assert "[1/2]" not in done.err and (moved / "journal.jsonl").read_bytes().startswith(kept)
    results = OnlineResults.model_validate_json((moved / "offline_results.json").read_bytes())
    assert [(row.label, row.repeat) for row in results.results] == results.meta.order
    assert [skip.label for skip in results.skipped] == ["openai"]
    assert len(results.meta.launches) == 2 and "interrupted" not in (moved / "summary.md").read_text()
    check_files(moved)
    heads = ["engine", "req/s", "output tok/s", "total tok/s", "total latency (s)"]
    assert any(re.split(r"\s{2,}", line.strip()) == heads for line in done.err.splitlines())

    both = bench("compare", str(moved), str(moved), "--gate", "total_tok_per_s>=1")
    assert both.code == 0 and "roseinfer (in-process) (B) against roseinfer (A)" in both.out, both.err


def check_files(folder: Path) -> None:
    """Every file of a run of two prompts is there, and they agree."""
    assert {path.name for path in folder.iterdir()} == {
        "run.json", "journal.jsonl", "skipped.json", "offline_results.json", "results.csv", "summary.md",
        "report.html", "logs", "requests.parquet", "chunks.parquet",
    }  # fmt: skip
    results = json.loads((folder / "offline_results.json").read_text())
    assert [result["label"] for result in results["results"]] == ["roseinfer", "roseinfer (in-process)"]
    for row in results["results"]:
        assert (row["prompt_tokens"], row["completion_tokens"]) == (16, 6)
        assert row["req_per_s"] == pytest.approx(2 / row["total_s"])
        assert row["output_tok_per_s"] == pytest.approx(6 / row["total_s"])
        assert row["total_tok_per_s"] == pytest.approx(22 / row["total_s"])
        assert row["label"] in (folder / "summary.md").read_text()
    assert "- Model: gpt2-tiny with random weights, " in (folder / "summary.md").read_text()
    assert "gpt2-tiny with random weights, " in (folder / "report.html").read_text()
