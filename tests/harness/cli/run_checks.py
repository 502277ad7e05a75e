"""What every finished run folder holds, checked against its raw tables and the definitions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from harness.records.parquet import read_records
from harness.records.stored import STORED_CHUNKS, STORED_REQUESTS
from harness.schema.results import OnlineResults
from harness.schema.run_info import RunInfo

FILES = {
    "run.json", "journal.jsonl", "skipped.json", "requests.parquet", "chunks.parquet", "online_results.json",
    "summary.md", "results.csv", "report.html",
}  # fmt: skip


def strict(text: str) -> Any:
    """JSON without NaN and Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def check_end(code: int, folder: Path) -> None:
    """A run in which no request failed ends well, unless no cell is valid: a busy machine may send late."""
    results = OnlineResults.model_validate_json((folder / "online_results.json").read_bytes())
    assert code == (0 if any(summary.valid for summary in results.summaries) else 3)


def check_files(folder: Path, logs: set[str]) -> dict[str, Any]:
    """Every file of the contract is there, readable, and they agree. Returns the results."""
    of_ours = {"logs", "server.parquet"} if logs else set()  # the mock server has no metrics
    assert {path.name for path in folder.iterdir()} == FILES | of_ours
    assert {path.name for path in folder.glob("logs/*")} == logs
    results: dict[str, Any] = strict((folder / "online_results.json").read_text())
    OnlineResults.model_validate(results)
    run = strict((folder / "run.json").read_text())
    RunInfo.model_validate(run)
    assert results["schema_version"] == 1 and results["meta"] == run
    assert "auto" not in (run["settings"]["device"], run["settings"]["dtype"], run["settings"]["clients"])
    journal = [strict(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    assert [entry["cell"] for entry in journal] == list(range(len(journal)))
    for name, schema in (("requests", STORED_REQUESTS), ("chunks", STORED_CHUNKS)):
        assert list(pd.read_parquet(folder / f"{name}.parquet").columns) == schema.names
    assert 'src="http' not in (folder / "report.html").read_text()
    assert (folder / "summary.md").read_text().startswith("# ")
    return results


def check_summaries(folder: Path, results: dict[str, Any]) -> None:
    """Every figure again, from the parquet files and the definitions of the contract."""
    requests = read_records(folder).requests
    chunks = read_records(folder).chunks.sort_values(["cell", "request", "t"])
    wanted = {(label, load, None) for label, load in set(zip(requests.label, requests.load, strict=True))}
    wanted |= set(zip(requests.label, requests.load, requests.repeat, strict=True))
    loads = [json.dumps(summary["load"], separators=(",", ":")) for summary in results["summaries"]]
    pairs = list(zip(results["summaries"], loads, strict=True))
    assert {(summary["label"], load, summary["repeat"]) for summary, load in pairs} == wanted
    assert len(results["summaries"]) == len(wanted)
    for found, load in pairs:
        mine = requests[(requests.label == found["label"]) & (requests.load == load)]
        if found["repeat"] is not None:
            mine = mine[mine.repeat == found["repeat"]]
        check_summary(found, mine, chunks)


def check_summary(found: dict[str, Any], mine: pd.DataFrame, chunks: pd.DataFrame) -> None:
    good = mine[mine.error.isna()]
    counts: dict[str, float] = {
        "num_requests": len(mine),
        "num_success": len(good),
        "num_error": len(mine) - len(good),
    }
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
    later = gaps.groupby(["cell", "request"]).tokens.sum().rename("later")  # tokens after the first chunk
    several = good.join(later, on=["cell", "request"], how="inner")
    samples = {
        "ttft_ms": (good.t_first - good.t_sent) * 1e3,
        "e2e_ms": (good.t_last - good.t_sent) * 1e3,
        "tpot_ms": (several.t_last - several.t_first) * 1e3 / several.later,
        "itl_ms": pd.Series(np.repeat(gaps.gap / gaps.tokens, gaps.tokens)),
        "icl_ms": gaps.gap,
        "submit_lag_ms": (good.t_sent - good.t_sched - good.connecting_s.fillna(0)) * 1e3,
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
