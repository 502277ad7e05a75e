"""Sessions and shared prefixes of a trace, through a whole run against a real server."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.samples import Sample

from harness.engines.adapters.openai import OpenAI
from harness.engines.prometheus import prefix_count, read_samples
from harness.loadgen.load_plan import Target
from harness.records.parquet import read_records
from harness.report.tables.cells import prefix_table
from harness.runs import server_session
from harness.schema.online_settings import OnlineSettings
from tests.harness.measured import run_online

pytestmark = pytest.mark.integration

TRACE = """\
# block_size: 32
arrival_s,input_tokens,output_tokens,session,prefix_blocks
0,64,4,a,1 2
0.001,40,4,b,1 3
0.002,96,4,a,1 2 4
1.5,96,4,a,1 2 4
"""
#: Of 296 tokens: 32 of the second; all but the new block of the third; all but the last token's block of the
#: fourth.
POSSIBLE = (32 + 64 + 80) / 296


@pytest.fixture
def settings(tmp_path: Path, start_mock: Any) -> OnlineSettings:
    (tmp_path / "trace.csv").write_text(TRACE)
    return OnlineSettings(
        base_url=start_mock("--ttft-ms", "60").url, trace=str(tmp_path / "trace.csv"), scales=[1.0],
        max_model_len=1024, warmup=0, calibrate=False, check_answers=False, out=tmp_path / "runs",
    )  # fmt: skip


def test_turns_and_what_could_be_cached(settings: OnlineSettings) -> None:
    folder, results = run_online(settings, ["bench"], lambda event: None)
    [hits] = results.prefixes
    assert (hits.label, hits.load.value, hits.repeat, hits.prompt_tokens) == ("openai", 1.0, 0, 296)
    assert hits.possible == pytest.approx(POSSIBLE)
    assert hits.reported is None and hits.source.startswith("unknown")
    requests = read_records(folder).requests.set_index("request")
    assert requests["reusable_tokens"].tolist() == [0, 32, 64, 80]
    assert requests["late_s"].isna().tolist() == [True, True, False, False]
    assert requests["late_s"][2] > 0.05 and requests["late_s"][3] == 0
    assert requests["t_sched"][2] == pytest.approx(requests["t_end"][0], abs=1e-6)
    assert requests["t_sent"][2] >= requests["t_end"][0]
    [summary, _] = results.summaries
    assert (summary.later_turns, summary.late_turns) == (2, 1)
    assert summary.offered_req_per_s == pytest.approx(3 / 1.5)
    table = prefix_table(results.prefixes)
    assert table is not None and table.lines[0][3:5] == [f"{100 * POSSIBLE:.1f} %", "–"]


class Page(http.server.BaseHTTPRequestHandler):
    """Counters, the first of two engine cores, that rise by 32 and 100 with each look."""

    looks = 0

    def do_GET(self) -> None:
        Page.looks += 1
        text = (
            "# HELP vllm:prefix_cache_hits_total Hits.\n"
            f'vllm:prefix_cache_hits_total{{engine="0",model_name="a b"}} {16 * Page.looks}.0\n'
            f'vllm:prefix_cache_hits_total{{engine="1",model_name="a b"}} {16 * Page.looks}.0\n'
            f"vllm:prefix_cache_queries_total {1e2 * Page.looks}\n"
            "vllm:prefix_cache_hits_created 1.7e9\n"
        ).encode()
        self.send_response(200 if self.path == "/metrics" else 404)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: Any) -> None:
        """Keep the test output quiet."""


@pytest.fixture
def page() -> Iterator[Target]:
    Page.looks = 0
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Target("127.0.0.1", server.server_port, "/v1/completions")
        server.shutdown()
        thread.join()


HITS, QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
COUNTERS = {"prefix_hits": HITS, "prefix_queries": QUERIES}


def test_what_the_engine_counts_stands_beside(
    settings: OnlineSettings, page: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OpenAI, "server_series", COUNTERS)
    monkeypatch.setattr(server_session, "read_samples", lambda target: read_samples(page))  # another server's
    _, results = run_online(settings, ["bench"], lambda event: None)
    [hits] = results.prefixes
    assert hits.possible == pytest.approx(POSSIBLE) and hits.reported == pytest.approx(0.32)
    assert hits.source == "GET /metrics: vllm:prefix_cache_hits_total, vllm:prefix_cache_queries_total"


def test_the_page_is_read_once_before_a_cell_and_once_after(
    settings: OnlineSettings, page: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OpenAI, "server_series", COUNTERS)
    monkeypatch.setattr(OpenAI, "histograms", {"queue_wait_ms": "vllm:request_queue_time_seconds"})
    monkeypatch.setattr(server_session, "read_samples", lambda target: read_samples(page))
    run_online(settings, ["bench"], lambda event: None)
    assert Page.looks == 2


@given(st.lists(st.floats(), min_size=4, max_size=4))
def test_what_rose_is_a_count_or_unknown(numbers: list[float]) -> None:
    """A server may be started again in a cell, or write what is no number."""
    pages = [
        [Sample(HITS, {}, hits), Sample(QUERIES, {}, queries)] for hits, queries in (numbers[:2], numbers[2:])
    ]
    found = prefix_count(COUNTERS, *pages)
    assert found is None or (found.hits >= 0 and found.queries >= 0)


def test_counters_that_are_not_there(page: Target) -> None:
    before, after = read_samples(page), read_samples(page)
    found = prefix_count(COUNTERS, before, after)
    assert found is not None and (found.hits, found.queries) == (32, 100)
    assert prefix_count(COUNTERS | {"prefix_hits": "vllm:prefix_cache_hits"}, before, after) is None
    assert prefix_count(COUNTERS, before, read_samples(Target("127.0.0.1", 1, "/"))) is None
