"""Every way in which a server can fail a request, through `bench online`: counted under its kind, once."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from harness.records.parquet import read_records
from harness.schema.results import OnlineResults

from .run_checks import check_files, strict

#: What the server does to a request, and the kind under which that counts; None: it is a success.
FAULTS: list[tuple[dict[str, Any], str | None]] = [
    ({"status": 500}, "http_500"),  # also the first request of the warm-up, which is sent again
    ({}, None),
    ({"padding": 1 << 20}, None),  # a line of 1 MB
    ({"padding": 1 << 20, "garbled_after": 1}, "stream_error"),
    ({"garbled_after": 0}, "stream_error"),  # no JSON
    ({"error_after": 0}, "stream_error"),
    ({"error_after": 2}, "stream_error"),
    ({"finish_reason": "abort"}, "stream_error"),
    ({"half_event_after": 2}, "stream_error"),
    ({"content_type": "text/html"}, "stream_error"),
    ({"content_type": "application/json", "garbled_after": 0}, "stream_error"),
    ({"status": 307}, "http_307"),
    ({"status": 400}, "http_400"),
    ({"status": 404}, "http_404"),
    ({"status": 503}, "http_503"),
    ({"cut_after": 0}, "disconnected"),
    ({"cut_after": 2}, "disconnected"),
    ({"cut_after": 2, "reset": True}, "disconnected"),
    ({"cut_after": 2, "framing": "close"}, "truncated"),
    ({"done": False, "finish_reason": None}, "truncated"),
    ({"tokens": 0}, "no_tokens"),
    ({"usage": "none", "token_ids": False}, "no_usage"),
    ({"usage_off_by": 1}, "token_mismatch"),
    ({"usage_off_by": -2, "usage": "continuous", "token_ids": False}, "token_mismatch"),
    ({"tokens": 3}, "wrong_length"),
    ({"tokens": 9}, "wrong_length"),
    ({"tokens": 20}, "wrong_length"),
    ({"silent": True}, "timeout"),  # nothing at all
    ({"stall_after": 0}, "timeout"),
    ({"stall_after": 3}, "timeout"),
]
N = 2 * len(FAULTS)


def test_every_fault_is_counted_under_its_kind(start_mock, bench, tmp_path, quick):
    server = start_mock(script=[behaviour for behaviour, _ in FAULTS])
    trace = "".join(f"{i * 0.01},9,6\n" for i in range(N))
    (tmp_path / "trace.csv").write_text(f"arrival_s,input_tokens,output_tokens\n{trace}")
    done = bench(
        "online", "--base-url", server.url, *quick, "--trace", str(tmp_path / "trace.csv"), "--json",
        "--scales", "1", "--n", str(N), "--timeout-s", "2",
    )  # fmt: skip
    assert done.code == 3, done.err
    results = OnlineResults.model_validate_json(done.out)
    kinds = Counter(kind for _, kind in FAULTS if kind is not None)
    expected = {kind: 2 * count for kind, count in kinds.items()}
    failed = sum(expected.values())
    assert results.skipped == [] and len(results.summaries) == 2
    for summary in results.summaries:
        assert summary.errors == expected
        assert (summary.num_requests, summary.num_error, summary.num_success) == (N, failed, N - failed)
        assert summary.completion_tokens == 6 * summary.num_success and summary.ttft_ms.n == N - failed
        assert not summary.valid and summary.invalid_reasons[0].values == {"failed": failed, "requests": N}

    [folder] = (tmp_path / "runs").iterdir()
    shown = strict(done.out)
    assert shown.pop("answer") and shown == check_files(folder, logs=set())
    assert f"INVALID: {failed} of {N} requests failed" in done.err
    requests = read_records(folder).requests
    assert len(requests) == N and requests["error"].value_counts().to_dict() == expected
    assert requests["error_detail"].notna().equals(requests["error"].notna())
    late = requests[requests["error"] == "timeout"]
    assert (late["t_end"] - late["t_sent"] >= 2).all()
    journal = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    assert [(entry["requests"], entry["failed"]) for entry in journal] == [(N, failed)]
    chunks = read_records(folder).chunks.groupby(["cell", "request"])["tokens"].sum()
    known = requests[requests["completion_tokens"].fillna(0) > 0].set_index(["cell", "request"])
    assert chunks.to_dict() == known["completion_tokens"].astype(int).to_dict()
    summary_md = (folder / "summary.md").read_text().replace("\\", "")
    assert all(kind in summary_md for kind in expected)


def test_a_report_says_what_failed_and_what_to_do(start_mock, bench, tmp_path, quick):
    done = bench(
        "online", "--base-url", start_mock(script=[{"tokens": 4}]).url, *quick, "--concurrency", "1",
        "--n", "4", "--input-len", "8", "--output-len", "9",
    )  # fmt: skip
    assert done.code == 3
    [folder] = (tmp_path / "runs").iterdir()
    said = "first: wrong_length (4 tokens, 9 asked for; the server ends answers on its own"
    assert said in (folder / "summary.md").read_text().replace("\\", "")
