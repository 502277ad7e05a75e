"""What a reader must know of a cell reaches report, summary.md, CSV and JSON; the gravest the terminal."""

from __future__ import annotations

import csv
import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.fairness.task import make_items

#: By kind of notice, words of its text.
SAID = {
    "behind": "Latencies measure the queue",
    "large_chunks": "half of the answers began with a chunk of 8 or more",
    "stolen_time": "the hypervisor took 50 % of the CPUs' time",
    "inaccurate": "60 of 240 items right, other 200",
}


@pytest.fixture
def run(start_mock: Any, bench: Callable[..., Any], quick: list[str], any_lag: None) -> Path:
    """One request at a time where a dozen a second come, answered in chunks of eight tokens."""
    server = start_mock("--slots", "1", "--ttft-ms", "30", "--itl-ms", "1", "--tokens-per-chunk", "8")
    done = bench(
        "online", "--base-url", server.url, *quick, "--n", "60", "--scales", "0.01", "--fit", "clip",
        "--max-output-len", "12",
    )  # fmt: skip
    assert done.code == 0, done.err
    return Path(done.out.strip()).parent


def test_saturated_in_large_chunks_disturbed_and_wrong(run: Path, bench: Callable[..., Any]) -> None:
    """The queue is real; the machine's record and the answers are changed as if they had been so."""
    [entry] = map(json.loads, (run / "journal.jsonl").read_text().splitlines())
    entry["machine"]["steal_share"] = 0.5
    (run / "journal.jsonl").write_text(json.dumps(entry) + "\n")
    right = {"openai": 60, "other": 200}
    given = {
        label: {"right": [place < count for place in range(len(make_items()))]}
        for label, count in right.items()
    }
    (run / "accuracy.json").write_text(json.dumps({"by_engine": given}))
    done = bench("online", "--resume", str(run))
    assert done.code == 3, "no cell is valid"

    results = json.loads((run / "online_results.json").read_text())
    pooled = [summary for summary in results["summaries"] if summary["repeat"] is None]
    facts = [fact for summary in pooled for fact in (*summary["invalid_reasons"], *summary["notices"])]
    assert SAID.keys() <= {fact["kind"] for fact in facts}
    page = html.unescape(re.sub(r"<[^>]+>", "", (run / "report.html").read_text()))
    with (run / "results.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["repeat"] == ""]
    for kind, words in SAID.items():
        for place in (page, (run / "summary.md").read_text().replace("\\", "")):
            assert words in place, kind
        assert all(kind in row["notices"].split() for row in rows)

    shown = {kind for kind, words in SAID.items() if words in done.err}
    assert shown >= {"behind", "inaccurate"}

    assert {row["valid"] for row in rows} == {"False"}  # by its accuracy alone
    [accuracy] = [row for row in rows if row["metric"] == "accuracy"]
    assert float(accuracy["value"]) == 0.25
    assert float(accuracy["lo"]) < 0.25 < float(accuracy["hi"])
    assert all(summary["valid"] is False for summary in pooled)
