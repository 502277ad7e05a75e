"""`bench online` as a user runs it: real processes, real sockets, and every file that it leaves."""

from __future__ import annotations

import json
import signal
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from harness.records.columns import CHUNKS, REQUESTS
from harness.schema.results import OnlineResults, OnlineRunInfo

FILES = {
    "run.json", "journal.jsonl", "skipped.json", "requests.parquet", "chunks.parquet", "online_results.json",
    "summary.md", "report.html", "figures",
}  # fmt: skip
FIGURES = {
    "overview",
    *(f"{m}{view}" for m in ("ttft", "tpot", "itl", "e2e") for view in ("", "_p90", "_p99")),
}


def strict(text: str) -> Any:
    """JSON without NaN and Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def check_files(folder: Path, logs: set[str]) -> dict[str, Any]:
    """Every file of the contract is there, readable, and they agree. Returns the results."""
    assert {path.name for path in folder.iterdir()} == FILES | ({"logs"} if logs else set())
    assert {path.name for path in folder.glob("logs/*")} == logs
    results: dict[str, Any] = strict((folder / "online_results.json").read_text())
    OnlineResults.model_validate(results)
    run = strict((folder / "run.json").read_text())
    OnlineRunInfo.model_validate(run)
    assert results["schema_version"] == 2 and results["meta"] == run
    assert "auto" not in (run["settings"]["device"], run["settings"]["dtype"], run["settings"]["clients"])
    journal = [strict(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    assert [entry["cell"] for entry in journal] == list(range(len(journal)))
    for name, schema in (("requests", REQUESTS), ("chunks", CHUNKS)):
        assert list(pd.read_parquet(folder / f"{name}.parquet").columns) == schema.names
    assert {path.stem for path in (folder / "figures").iterdir()} >= FIGURES
    for figure in (folder / "figures").glob("*.svg"):
        ET.parse(figure)
    assert 'src="http' not in (folder / "report.html").read_text()
    assert (folder / "summary.md").read_text().startswith("# ")
    return results


def check_summaries(folder: Path, results: dict[str, Any]) -> None:
    """Every figure again, from the parquet files and the definitions of the contract."""
    requests = pd.read_parquet(folder / "requests.parquet")
    chunks = pd.read_parquet(folder / "chunks.parquet").sort_values(["cell", "request", "t"])
    wanted = {(label, load, None) for label, load in set(zip(requests.label, requests.load, strict=True))}
    wanted |= set(zip(requests.label, requests.load, requests.repeat, strict=True))
    loads = [json.dumps(one["load"], separators=(",", ":")) for one in results["summaries"]]
    pairs = list(zip(results["summaries"], loads, strict=True))
    assert {(one["label"], load, one["repeat"]) for one, load in pairs} == wanted
    assert len(results["summaries"]) == len(wanted)
    for found, load in pairs:
        mine = requests[(requests.label == found["label"]) & (requests.load == load)]
        if found["repeat"] is not None:
            mine = mine[mine.repeat == found["repeat"]]
        check_summary(found, mine, chunks)


def check_summary(found: dict[str, Any], mine: pd.DataFrame, chunks: pd.DataFrame) -> None:
    good = mine[mine.error.isna()]
    counts = {"num_requests": len(mine), "num_success": len(good), "num_error": len(mine) - len(good)}
    counts |= {"completion_tokens": good.completion_tokens.sum(), "chunks": good.chunks.sum()}
    counts |= {"prompt_tokens": good.prompt_tokens.fillna(good.input_tokens).sum()}
    assert counts == {name: found[name] for name in counts}
    assert mine.error.value_counts().to_dict() == found["errors"]

    by_cell = mine.groupby("cell")
    seconds = (by_cell.t_end.max() - by_cell.t_sched.min()).sum()
    scheduled = (by_cell.t_sched.max() - by_cell.t_sched.min()).sum()
    rates = {
        "duration_s": seconds,
        "offered_req_per_s": (len(mine) - by_cell.ngroups) / scheduled,
        "req_per_s": len(good) / seconds,
        "output_tok_per_s": counts["completion_tokens"] / seconds,
        "total_tok_per_s": (counts["completion_tokens"] + counts["prompt_tokens"]) / seconds,
    }
    assert {name: found[name] for name in rates} == pytest.approx(rates, rel=1e-9)

    gaps = chunks.merge(good[["cell", "request"]], on=["cell", "request"])
    gaps = gaps.assign(gap=gaps.groupby(["cell", "request"]).t.diff() * 1e3).dropna()
    several = good[good.completion_tokens >= 2]
    samples = {
        "ttft_ms": (good.t_first - good.t_sent) * 1e3,
        "e2e_ms": (good.t_last - good.t_sent) * 1e3,
        "tpot_ms": (several.t_last - several.t_first) * 1e3 / (several.completion_tokens - 1),
        "itl_ms": pd.Series(np.repeat(gaps.gap / gaps.tokens, gaps.tokens)),
        "icl_ms": gaps.gap,
        "submit_lag_ms": (good.t_sent - good.t_sched) * 1e3,
        "ttft_from_schedule_ms": (good.t_first - good.t_sched) * 1e3,
        "e2e_from_schedule_ms": (good.t_last - good.t_sched) * 1e3,
        "queue_wait_ms": good.queue_wait_ms.dropna(),
        "prefill_ms": good.prefill_ms.dropna(),
    }
    for name, sample in samples.items():
        assert found[name]["n"] == len(sample), name
        if not len(sample):
            continue
        expected = {"mean": sample.mean(), "max": sample.max()}
        expected |= {f"p{q}": sample.quantile(q / 100) for q in (50, 90, 95, 99)}
        assert {key: found[name][key] for key in expected} == pytest.approx(expected, rel=1e-6, abs=1e-9), (
            name
        )
    good_enough = samples["ttft_ms"] <= 1e5
    assert found["goodput_req_per_s"] == pytest.approx(good_enough.sum() / seconds)


def test_a_whole_run(start_mock: Any, start_bench: Any, quick: list[str]) -> None:
    """Two scales, two repeats, chunks of several tokens, a service level."""
    server = start_mock("--tokens-per-chunk", "3")
    done = start_bench(
        "online", "--base-url", server.url, *quick, "--n", "12", "--scales", "0.02,0.01", "--repeats", "2",
        "--warmup", "auto", "--slo", "ttft_ms=100000",
    ).end()  # fmt: skip
    assert done.code == 0, done.err
    report = Path(done.out.removesuffix("\n"))
    assert report.name == "report.html" and report.is_file()
    results = check_files(report.parent, logs=set())
    check_summaries(report.parent, results)
    assert results["skipped"] == [] and results["meta"]["trace"]["requests"] == 12
    assert {summary["num_error"] for summary in results["summaries"]} == {0}
    assert "\x1b" not in done.err and "\r" not in done.err
    lines = done.err.splitlines()
    assert lines[0] == f"run {report.parent}: 4 cells"
    assert next(line for line in lines if line.startswith("[3/4]")).endswith("12 requests")
    assert "TTFT (ms), p50/p90/p99" in lines and "Throughput and failures" in lines


def test_killed_and_resumed_with_a_real_engine(
    start_bench: Callable[..., Any], tmp_path: Path, quick: list[str]
) -> None:
    """roseinfer, SIGKILL within the second cell: nothing stays behind, nothing is measured twice."""
    first = start_bench(
        "online", "--engines", "roseinfer", "--model", "random:gpt2-tiny", "--device", "cpu", *quick,
        "--max-model-len", "128", "--fit", "clip", "--max-output-len", "6", "--n", "6",
        "--scales", "0.2,0.1", "--warmup", "2", "--slo", "ttft_ms=100000",
    )  # fmt: skip
    folder = Path(first.until("run ").removeprefix("run ").partition(": ")[0])
    first.until("roseinfer: ready after")
    first.until("[2/2] roseinfer, scale 0.1, repeat 0: 6 requests")
    assert first.offspring
    first.process.kill()
    assert first.end().code == -signal.SIGKILL
    assert first.left() == []
    kept = (folder / "journal.jsonl").read_bytes()
    assert kept.count(b"\n") == 1

    again = start_bench("online", "--resume", folder)
    again.until("ready after")
    done = again.end()
    assert done.code == 0, done.err
    assert again.left() == []
    assert done.out == f"{folder / 'report.html'}\n"
    assert "[1/2]" not in done.err and "1 already measured" in done.err
    assert (folder / "journal.jsonl").read_bytes().startswith(kept)
    results = check_files(folder, logs={"roseinfer.server.log"})
    check_summaries(folder, results)
    assert [one["num_success"] for one in results["summaries"]] == [6] * 4
    [launch] = results["meta"]["launches"]
    assert launch["engine"] == "roseinfer" and launch["argv"] and launch["ready_s"] > 0
    assert results["meta"]["versions"]["roseinfer"] == launch["version"]


def test_ctrl_c_is_saved_and_names_how_to_go_on(
    start_mock: Any, start_bench: Any, bench: Any, quick: list[str]
) -> None:
    server = start_mock()
    first = start_bench("online", "--base-url", server.url, *quick, "--n", "8", "--scales", "0.02,1")
    folder = Path(first.until("run ").removeprefix("run ").partition(": ")[0])
    first.until("[1/2] openai, scale 1, repeat 0: TTFT")
    first.until("[2/2]")
    first.process.send_signal(signal.SIGINT)
    done = first.end()
    assert (done.code, done.out) == (130, "")
    assert done.err.splitlines()[-2:] == [
        "bench: interrupted; finished cells are saved",
        f"  hint: finish the run with `bench online --resume {folder}`",
    ]
    assert first.left() == []
    done = bench("online", "--resume", str(folder))
    assert done.code == 0, done.err
    results = check_files(folder, logs=set())
    assert [one["load"]["scale"] for one in results["summaries"] if one["repeat"] is None] == [0.02, 1]


def test_failures_are_counted_by_kind(start_mock: Any, bench: Any, tmp_path: Path, quick: list[str]) -> None:
    script = [{}, {"status": 500}, {"cut_after": 2}, {"tokens": 3}, {"usage_off_by": 1}]
    (tmp_path / "script.json").write_text(json.dumps(script))
    server = start_mock("--script", str(tmp_path / "script.json"))
    done = bench(
        "online", "--base-url", server.url, *quick, "--concurrency", "1", "--n", "20", "--json",
        "--input-len", "9", "--output-len", "6", "--slo", "ttft_ms=100000",
    )  # fmt: skip
    assert done.code == 3, done.err
    results = strict(done.out)
    [folder] = (tmp_path / "runs").iterdir()
    assert results == check_files(folder, logs=set())
    for summary in results["summaries"]:
        kinds = dict.fromkeys(("http_500", "disconnected", "wrong_length", "token_mismatch"), 4)
        assert (summary["errors"], summary["num_success"], summary["num_error"]) == (kinds, 4, 16)
        # On a loaded machine the client may send late too, which is a reason of its own.
        assert not summary["valid"] and summary["invalid_reasons"][0] == "16 of 20 requests failed"
    assert "INVALID: 16 of 20 requests failed" in done.err


def test_nothing_listens(start_mock: Any, bench: Any, quick: list[str]) -> None:
    server = start_mock()
    server.end()
    done = bench("online", "--base-url", server.url, *quick, "--scales", "1,2", "--n", "2")
    assert (done.code, done.out) == (3, "")
    where = f"127.0.0.1:{server.port}"
    message, hint = done.err.splitlines()[-2:]
    assert message.startswith(f"bench: nothing could be measured: openai: no server answers at {where}")
    assert hint.startswith(
        "  hint: start it, or check --base-url; then finish the run with `bench online --r"
    )
    assert "Traceback" not in done.err


def test_an_engine_that_is_not_installed_is_named_and_no_failure(
    start_mock: Any, bench: Any, tmp_path: Path, quick: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho \'{"python": "3"}\'\n')
    python.chmod(0o755)
    (tmp_path / "engines.yaml").write_text(f"vllm: {{python: {python}}}\n")
    monkeypatch.setenv("BENCH_ENGINES", str(tmp_path / "engines.yaml"))
    server = start_mock()
    model = ["--model", "random:gpt2-tiny", "--device", "cpu"]
    done = bench(
        "online", "--engines", "vllm,openai", "--base-url", server.url, *model, *quick, "--n", "3",
        "--scales", "0.01",
    )  # fmt: skip
    assert done.code == 0, done.err
    results = strict((Path(done.out.strip()).parent / "online_results.json").read_text())
    [skipped] = results["skipped"]
    assert (skipped["engine"], skipped["label"], skipped["load"]) == ("vllm", "vLLM", None)
    lines = done.err.splitlines()
    at = lines.index(f"skipped vLLM: {skipped['reason']}")
    assert lines[at + 1] == f"  hint: {skipped['hint']}" and skipped["hint"]
    assert skipped["reason"] in Path(done.out.strip()).with_name("summary.md").read_text().replace("\\", "")

    alone = bench("online", "--engines", "vllm", *model, *quick)
    assert alone.code == 2 and alone.err.startswith("bench: none of the engines is installed: vLLM: ")


def test_a_profile_that_fails_hides_no_result_and_is_tried_again(
    start_mock: Any, bench: Any, quick: list[str]
) -> None:
    """A server that was not started here is not profiled."""
    where = "--base-url", start_mock().url
    done = bench("online", *where, *quick, "--n", "2", "--scales", "0.01", "--profile", "torch")
    assert done.code == 3
    report = Path(done.out.removesuffix("\n"))
    assert report.name == "report.html" and report.is_file()
    assert "TTFT (ms), p50/p90/p99" in done.err.splitlines()
    assert done.err.splitlines()[-2] == "bench: nothing could be profiled"
    again = bench("online", "--resume", str(report.parent))
    assert (again.code, again.out) == (3, done.out)
    assert "openai: no torch profile: " in again.err and "1 already measured" in again.err

    manifest = report.parent / "profile_manifest.json"
    captured = json.loads(manifest.read_text())
    captured["runs"][0]["error"] = None  # as of an engine that has a profiler
    manifest.write_text(json.dumps(captured))
    done = bench("online", "--resume", str(report.parent))
    assert done.code == 0 and "torch profile" not in done.err


@pytest.mark.parametrize(
    ("fit", "words"), [(["drop"], "dropped"), (["clip", "--max-output-len", "8"], "changed")]
)
def test_what_fitting_does_is_said_when_the_run_begins(
    start_mock: Any, bench: Any, quick: list[str], fit: list[str], words: str
) -> None:
    load = ["--max-model-len", "256", "--n", "4", "--scales", "0.01", "--fit", *fit]
    done = bench("online", "--base-url", start_mock().url, *quick, *load)
    assert done.code == 0, done.err
    trace = strict((Path(done.out.strip()).parent / "run.json").read_text())["trace"]
    count, whole = trace[words], trace["requests"] + trace["dropped"]
    assert count
    line = done.err.splitlines()[1]
    assert line.startswith(f"--fit {fit[0]}: ") and f"{count:,} " in line and line.endswith(f") {words}")
    assert f" of {whole:,} ({100 * count / whole:.0f} %)" in line


def test_quiet_says_nothing_but_the_report(start_mock: Any, bench: Any, quick: list[str]) -> None:
    server = start_mock()
    done = bench("online", "--base-url", server.url, *quick, "--n", "2", "--scales", "0.01", "--quiet")
    assert (done.code, done.err) == (0, "") and done.out.endswith("report.html\n")
