"""`bench online` as a user runs it: real processes, real sockets, and every file that it leaves."""

from __future__ import annotations

import errno
import signal
from pathlib import Path
from typing import Any

import pytest

from harness.files import write_json
from harness.runs.folder import read_info
from harness.runs.journal import JournalEntry, append_journal
from harness.schema.profile import Level, ProfileManifest, ProfileRun

from .run_checks import check_end, check_files, check_summaries, strict

#: The title of the table at the end.
TABLE = "Latencies in ms, p50/p90/p99, and rates"
#: Requests by which it is found out what a server takes.
TRIALS = 2


def test_a_whole_run(start_mock: Any, bench: Any, quick: list[str]) -> None:
    """Two scales, two repeats, chunks of several tokens, a service level."""
    server = start_mock("--tokens-per-chunk", "3")
    done = bench(
        "online", "--base-url", server.url, *quick, "--n", "12", "--scales", "0.02,0.01", "--repeats", "2",
        "--warmup", "2", "--slo", "ttft_ms=100000", "--serve", "0",
    )  # fmt: skip
    report = Path(done.out.removesuffix("\n"))
    check_end(done.code, report.parent)
    assert report.name == "report.html" and report.is_file()
    results = check_files(report.parent, logs=set())
    check_summaries(report.parent, results)
    assert results["skipped"] == [] and results["meta"]["trace"]["requests"] == 12
    assert {summary["num_error"] for summary in results["summaries"]} == {0}
    assert "\x1b" not in done.err and "\r" not in done.err
    lines = done.err.splitlines()
    assert lines[0] == f"run {report.parent}: 4 cells"
    assert sum(line.startswith("live page: http://127.0.0.1:") for line in lines) == 1
    assert [line[:5] for line in lines if line[0:1] == "["] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]
    assert TABLE in lines

    again = bench("online", "--resume", str(report.parent), "--quiet")
    assert (again.code, again.out, again.err) == (done.code, done.out, "")


@pytest.mark.slow
def test_killed_and_resumed_with_a_real_engine(start_bench, bench, tmp_path, quick):
    """`bench` is killed in the second cell: no process is left, and no cell is measured twice."""
    first = start_bench(
        "online", "--engines", "roseinfer", "--model", "random:gpt2-tiny", "--device", "cpu", *quick,
        "--max-model-len", "128", "--fit", "clip", "--max-output-len", "4", "--n", "3",
        "--scales", "0.2,0.1", "--warmup", "2", "--slo", "ttft_ms=100000",
    )  # fmt: skip
    folder = Path(first.until("run ").removeprefix("run ").partition(": ")[0])
    first.until("roseinfer: ready after")
    first.until("[1/2] roseinfer, scale 0.2, repeat 1: TTFT", send=signal.SIGKILL)
    assert first.offspring
    assert first.end().code == -signal.SIGKILL
    assert first.left() == []
    kept = (folder / "journal.jsonl").read_bytes()
    assert kept.count(b"\n") == 1

    done = bench("online", "--resume", str(folder))
    check_end(done.code, folder)
    assert done.out == f"{folder / 'report.html'}\n"
    assert "[1/2]" not in done.err and "1 already measured" in done.err
    assert (folder / "journal.jsonl").read_bytes().startswith(kept)
    results = check_files(folder, logs={"roseinfer.server.log"})
    check_summaries(folder, results)
    assert [summary["num_success"] for summary in results["summaries"]] == [3] * 4
    [launch] = results["meta"]["launches"]
    assert launch["engine"] == "roseinfer" and launch["argv"] and launch["ready_s"] > 0
    [again] = launch["later_ready_s"]
    [code] = launch["codes"]
    assert Path(code["folder"]).name == "roseinfer" and code["sha256"] in (folder / "report.html").read_text()
    assert again > 0 and f"s the first time, then {again:.1f} s" in (folder / "report.html").read_text()
    assert {"threads", "processes", "http_processes", "idle_cores"} <= launch["facts"].keys()
    assert all(summary["engine_cpu_s"] > 0 for summary in results["summaries"])
    assert results["meta"]["versions"]["roseinfer"] == launch["version"]


def stuck_after(cells: int) -> list[dict[str, Any]]:
    """Return a script that answers the requests of so many cells of eight, and those of the next never."""
    asked = TRIALS + 1  # the last is one that a server refuses
    return [{}] * (asked + 8 * cells) + [{"silent": True}] * 100


def test_what_a_killed_run_measured_can_be_reported(start_mock, start_bench, bench, quick, tmp_path):
    server = start_mock(script=stuck_after(cells=1))
    run = start_bench("online", "--base-url", server.url, *quick, "--n", "8", "--scales", "0.02,0.1")
    folder = run.until("run ").removeprefix("run ").partition(": ")[0]
    run.until("[1/2] openai, scale 0.1, repeat 1: TTFT")
    page = tmp_path / "page.html"
    going_on = bench("report", folder, "--out", str(page))
    assert going_on.code == 2 and "still going on" in going_on.err
    run.process.kill()
    run.end()
    done = bench("report", folder, "--out", str(page))
    assert done.code == 0, done.err
    assert "1 of 2 cells are measured" in page.read_text()
    server.end()
    start_mock("--port", str(server.port), script=[{}] * (TRIALS + 1 + 8) + [{"status": 200}] * 100)
    again = start_bench("online", "--resume", folder)
    again.until("[2/2] openai, scale 0.02, repeat 1: TTFT")
    again.process.kill()
    again.end()
    assert bench("report", folder, "--out", str(page)).code == 0
    assert "stored results differ" not in page.read_text()
    assert "cells are measured" not in page.read_text()


def test_an_interrupted_run_has_a_report_and_names_how_to_go_on(start_mock, start_bench, bench, quick):
    """By either signal; who interrupts twice waits for no report."""
    server = start_mock(script=stuck_after(cells=1))
    first = start_bench("online", "--base-url", server.url, *quick, "--n", "8", "--scales", "0.02,0.1")
    folder = Path(first.until("run ").removeprefix("run ").partition(": ")[0])
    first.until("[1/2] openai, scale 0.1, repeat 1: TTFT", send=signal.SIGTERM)
    done = first.end()
    report = folder / "report.html"
    assert (done.code, done.out) == (130, f"{report}\n")
    notice = "1 of 2 cells are measured"
    assert notice in done.err and TABLE in done.err.splitlines()
    assert notice in report.read_text() and notice in (folder / "summary.md").read_text()
    refused = bench("compare", str(folder), str(folder))
    assert refused.code == 2 and "is not finished" in refused.err
    hint = f"  hint: finish the run with `bench online --resume {folder}`"
    assert done.err.splitlines()[-2:] == ["bench: interrupted; every finished cell is saved", hint]
    assert first.left() == []

    server.end()
    server = start_mock("--port", str(server.port), script=stuck_after(cells=0))
    report.unlink()
    second = start_bench("online", "--resume", str(folder))
    second.until("openai: already running", send=signal.SIGINT)
    writing = "interrupted: writing the report of what is measured; Ctrl-C again ends at once"
    second.until(writing, send=signal.SIGINT)
    done = second.end()
    assert done.code == 130 and "Traceback" not in done.err
    # on a busy machine it may be written before the second signal is sent
    assert (done.out, report.exists()) in [("", False), (f"{report}\n", True)]
    # a command that takes over two seconds to end after a signal is ended without the hint
    assert done.err.splitlines()[-1] in (hint, "bench: interrupted")

    server.end()
    start_mock("--port", str(server.port))
    done = bench("online", "--resume", str(folder))
    check_end(done.code, folder)
    results = check_files(folder, logs=set())
    pooled = [summary for summary in results["summaries"] if summary["repeat"] is None]
    assert [summary["load"]["scale"] for summary in pooled] == [0.02, 0.1]
    assert not results["meta"]["interrupted"]
    assert "interrupted" not in (folder / "summary.md").read_text()


@pytest.mark.parametrize("file", ["raw/cell-00000.requests.parquet", "journal.jsonl"])
def test_a_full_disk_names_the_file_and_how_to_go_on(file, shared_mock, bench, tmp_path, quick, monkeypatch):
    def refuse(*anything: Any, **more: Any) -> None:
        raise OSError(errno.ENOSPC, "Error writing bytes to file.")  # as pyarrow says it, without a name

    def append(path: Path, entry: JournalEntry) -> None:
        monkeypatch.setattr("os.fsync", refuse)
        append_journal(path, entry)

    if file == "journal.jsonl":
        monkeypatch.setattr("harness.runs.run_state.append_journal", append)
    else:
        monkeypatch.setattr("harness.records.parquet.pq.write_table", refuse)
    load = ["--concurrency", "1", "--n", "2", "--input-len", "8", "--output-len", "4"]
    done = bench("online", "--base-url", shared_mock.url, *quick, *load)
    [folder] = (tmp_path / "runs").iterdir()
    assert done.code == 3 and done.err.splitlines()[-2:] == [
        f"bench: {folder}/{file}: No space left on device",
        f"  hint: free some space; then finish the run with `bench online --resume {folder}`",
    ]


def test_nothing_listens(start_mock: Any, bench: Any, quick: list[str]) -> None:
    server = start_mock()
    server.end()
    done = bench("online", "--base-url", server.url, *quick, "--scales", "1,2", "--n", "2")
    report = Path(done.out.removesuffix("\n"))
    assert (done.code, report.name) == (3, "report.html")
    where = f"127.0.0.1:{server.port}"
    message, hint = done.err.splitlines()[-2:]
    assert message.startswith(f"bench: nothing could be measured: openai: no server answers at {where}")
    assert hint.startswith(
        "  hint: start it, check the address, or wait for it with --wait-ready SECONDS; then finish "
    )
    assert "Traceback" not in done.err
    for page in (report, report.with_name("summary.md")):
        said = page.read_text()
        assert "No engine has a result." in said and said.count(f"o server answers at {where}") == 1
    assert not report.with_name("online_results.json").exists()
    again = bench("offline", "--resume", str(report.parent))  # any command goes on with any run
    assert again.code == 3 and f"no server answers at {where}" in again.err


@pytest.mark.parametrize(
    ("answered", "status", "said"),
    [
        (0, 404, "check the path in the address, --endpoint and --served-model"),
        (0, 403, "check the key, the headers that a gateway wants (--header), and --served-model"),
        (0, 500, "see the server's log, and check --served-model and --endpoint"),
        (TRIALS, 404, "check --endpoint and --served-model"),
    ],
)
def test_a_hint_that_names_other_settings_asks_for_a_new_run(
    start_mock: Any, bench: Any, quick: list[str], answered: int, status: int, said: str
) -> None:
    """A run that is resumed keeps its settings."""
    where = start_mock(script=[{}] * answered + [{"status": status}] * 8).url
    done = bench("online", "--base-url", where, *quick, "--n", "2", "--scales", "1", "--warmup", "2")
    assert done.code == 3 and done.err.splitlines()[-1] == f"  hint: {said}; then start a new run"


def test_an_engine_that_is_not_installed_is_named_and_no_failure(
    shared_mock: Any, bench: Any, tmp_path: Path, quick: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho \'{"python": "3"}\'\n')
    python.chmod(0o755)
    (tmp_path / "engines.yaml").write_text(f"vllm: {{python: {python}}}\n")
    monkeypatch.setenv("BENCH_ENGINES", str(tmp_path / "engines.yaml"))
    model = ["--model", "random:gpt2-tiny", "--device", "cpu"]
    done = bench(
        "online", "--engines", "vllm,openai", "--base-url", shared_mock.url, *model, *quick, "--n", "3",
        "--scales", "0.01", "--no-accuracy",
    )  # fmt: skip
    check_end(done.code, Path(done.out.strip()).parent)
    results = strict((Path(done.out.strip()).parent / "online_results.json").read_text())
    [skipped] = results["skipped"]
    assert (skipped["engine"], skipped["label"], skipped["load"]) == ("vllm", "vLLM", None)
    lines = done.err.splitlines()
    at = lines.index(f"skipped vLLM: {skipped['reason']}")
    assert lines[at + 1] == f"  hint: {skipped['hint']}" and skipped["hint"]
    summary = Path(done.out.strip()).with_name("summary.md").read_text()
    assert skipped["reason"][1:] in summary.replace("\\", "")

    alone = bench("online", "--engines", "vllm", *model, *quick)
    assert alone.code == 2 and alone.err.startswith(
        "bench: none of the engines can be measured: vLLM: not installed: "
    )
    assert len([*(tmp_path / "runs").iterdir()]) == 1


def test_a_run_that_cannot_be_profiled_keeps_its_results(shared_mock, bench, quick):
    """A server that was not started here is not profiled."""
    where = "--base-url", shared_mock.url
    done = bench("online", *where, *quick, "--n", "2", "--scales", "0.01", "--profile", "torch")
    assert done.code == 3
    report = Path(done.out.removesuffix("\n"))
    assert report.name == "report.html" and report.is_file()
    assert TABLE in done.err.splitlines()
    assert done.err.splitlines()[-2] == "bench: nothing could be profiled"
    again = bench("online", "--resume", str(report.parent))
    assert (again.code, again.out) == (3, done.out)
    assert "openai: no torch profile: " in again.err and "1 already measured" in again.err

    captured = ProfileRun(
        tool="torch", engine="openai", label="openai", cmd=[], n=1, level=Level(in_flight=1, running=1),
        steps=1, output_dir="profiles", log_path="log", wall_s=1,
    )  # fmt: skip
    manifest = ProfileManifest(meta=read_info(report.parent), runs=[captured])
    write_json(report.parent / "profile_manifest.json", manifest)
    done = bench("online", "--resume", str(report.parent))
    check_end(done.code, report.parent)
    assert "torch profile" not in done.err


@pytest.mark.parametrize(
    ("fit", "words"), [(["drop"], "dropped"), (["clip", "--max-output-len", "8"], "changed")]
)
def test_what_fitting_does_is_said_when_the_run_begins(bench, quick, fit, words):
    load = ["--max-model-len", "256", "--n", "4", "--scales", "0.01", "--fit", *fit]
    done = bench("online", "--base-url", "http://127.0.0.1:1", *quick, *load)
    assert done.code == 3, done.err  # nothing listens
    trace = strict((Path(done.out.strip()).parent / "run.json").read_text())["trace"]
    count, whole = trace[words], trace["requests"] + trace["dropped"]
    assert count
    line = done.err.splitlines()[1]
    assert line.startswith(f"--fit {fit[0]}: ") and f"{count:,} " in line and line.endswith(f") {words}")
    assert f" of {whole:,} ({100 * count / whole:.0f} %)" in line


@pytest.mark.usefixtures("any_lag")
def test_more_requests_than_rounds_and_a_model_that_is_not_listed_are_said(shared_mock, bench, quick):
    load = ["--concurrency", "1,4", "--rounds", "2", "--n", "6", "--input-len", "8", "--output-len", "4"]
    done = bench("online", "--base-url", shared_mock.url, "--served-model", "nope", *quick, *load)
    rounds = "With 1 in flight, --rounds 2 needs 2 requests; --n 6 sends 6; a lower --n sends fewer."
    assert rounds in done.err.splitlines()
    said = "warning: The server of openai does not list the model that was asked for. It was asked for nope"
    assert said in done.err
