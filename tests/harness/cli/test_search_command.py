"""`bench search` against servers of known capacity."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli.search import lasting_settings
from harness.runs.journal import JournalEntry, append_journal
from harness.runs.search import EngineSearch
from harness.schema.load import ClosedLoop, RequestRate
from harness.schema.online_settings import OnlineSettings
from harness.schema.search import MOST_REQUESTS, SearchPlan

pytestmark = pytest.mark.usefixtures("any_lag")

LIMITS = "ttft_p90<=150ms"
SHORT = (
    *("--by", "concurrency", "--lowest", "1", "--highest", "16", "--first", "2", "--cells", "5"),
    *("--n", "20", "--input-len", "8", "--output-len", "5", "--tokenizer", "none", "--max-model-len", "512"),
    *("--no-calibrate", "--warmup", "0", "--no-figures", "--quiet"),
)


@pytest.fixture
def servers(start_mock: Any) -> list[str]:
    """Two and eight requests at once, the others wait: an answer takes 0.1 s."""
    started = [start_mock("--slots", slots, "--ttft-ms", "98", "--itl-ms", "0.5") for slots in ("2", "8")]
    return [
        option
        for name, server in zip(("two", "eight"), started, strict=True)
        for option in ("--server", f"{name}={server.url}")
    ]


@pytest.mark.slow
def test_servers_of_known_capacity_are_told_apart(servers, bench, tmp_path):
    done = bench("search", *servers, "--slo", LIMITS, *SHORT, "--out", str(tmp_path / "runs"))
    assert done.code == 0, done.err
    run = Path(done.out.strip()).parent
    found = json.loads((run / "online_results.json").read_text())["search"]
    engines = {engine["label"]: engine for engine in found["engines"]}
    for label, slots in (("two", 2), ("eight", 8)):
        for trial in engines[label]["trials"]:
            # One more than the slots keeps fewer than every tenth request waiting; with all of them taken a
            # pause of the machine can do so, too.
            if not slots <= trial["value"] < 1.5 * slots:
                assert trial["met"] == (trial["value"] <= slots), trial
        assert engines[label]["low"] < 1.5 * slots and engines[label]["high"] >= slots
    [ratio] = found["ratios"]
    verdict = ratio["verdict"] if ratio["a"] == "eight" else {"less": "more"}.get(ratio["verdict"])
    assert verdict == "more"
    for place in ("summary.md", "report.html"):
        text = (run / place).read_text()
        assert "eight carries" in text and "times as much" in text

    journal = run / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:-2]))
    done = bench("search", "--resume", str(run), "--quiet")
    assert done.code == 0, done.err
    again = journal.read_text().splitlines(keepends=True)
    assert again[: len(lines) - 2] == lines[:-2], "what was measured is not measured again"
    cells = [json.loads(line)["cell"] for line in again]
    assert len(cells) == len(set(cells)) > len(lines) - 2


def test_ctrl_c_names_the_command_that_goes_on(start_mock, bench, tmp_path, monkeypatch):
    server = start_mock("--ttft-ms", "30")
    servers = [option for name in ("two", "twelve") for option in ("--server", f"{name}={server.url}")]

    def interrupted(path: Path, entry: JournalEntry) -> None:
        append_journal(path, entry)
        raise KeyboardInterrupt

    with monkeypatch.context() as first_cell:
        first_cell.setattr("harness.runs.run_state.append_journal", interrupted)
        few = ("--cells", "3", "--out", str(tmp_path / "runs"))
        done = bench("search", *servers, "--slo", LIMITS, *SHORT[:-1], *few)
    [folder] = (tmp_path / "runs").iterdir()
    assert (done.code, done.out) == (130, f"{folder}/report.html\n")
    assert "which come next depends on them; nothing of t" in done.err
    said = f"  hint: finish the run with `bench search --resume {folder}`"
    assert done.err.splitlines()[-1] == said
    done = bench(*shlex.split(said.partition("`bench ")[2].removesuffix("`")), "--quiet")
    assert (done.code, done.out) == (0, f"{folder}/report.html\n"), done.err


RATES = (
    *("--slo", "ttft_p50<=20ms", "--highest", "100", "--first", "40", "--cells", "3", "--n", "8"),
    *("--input-len", "8", "--output-len", "2", "--tokenizer", "none", "--max-model-len", "512"),
    *("--no-calibrate", "--warmup", "0", "--no-check-answers", "--no-accuracy", "--no-figures"),
)


@pytest.fixture
def brief_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells of a rate last 0.8 s where nothing else is asked for."""
    monkeypatch.setattr("harness.schema.search.SETTLE_S", 0.3)
    monkeypatch.setattr("harness.schema.search.MEASURED_S", 0.5)
    monkeypatch.setattr("harness.schema.search.MEASURED_LIMITS", 10)


def test_cells_of_a_rate_settle(brief_cells, start_mock, bench, tmp_path):
    """A server that misses the limit at once: three cells."""
    server = start_mock("--ttft-ms", "30")
    done = bench("search", "--server", f"only={server.url}", *RATES, "--out", str(tmp_path))
    assert done.code == 0, done.err
    results = json.loads((Path(done.out.strip()).parent / "online_results.json").read_text())
    stored = results["meta"]["settings"]
    assert (stored["settle"], stored["min_duration"]) == (0.3, 0.5)
    assert "0.3 s to settle, then 0.5 s or more are measured" in done.err
    cells = [cell for cell in results["summaries"] if cell["repeat"] is not None]
    assert all(cell["left_out"] > 0 and cell["window_s"][0] == 0.3 for cell in cells)
    assert all(cell["duration_s"] >= 0.5 for cell in cells)


@pytest.mark.parametrize("options", [
    {"min_duration": 0.2}, {"settle": 0.2, "min_duration": 0.3}, {"window": "0,1"}, {"steady_state": True},
])  # fmt: skip
def test_cells_settle_unless_something_else_is_asked_for(options: dict[str, object]) -> None:
    settings = OnlineSettings.model_validate({"engines": "vllm", "request_rate": [1]} | options)
    assert lasting_settings(settings, SearchPlan.make("rate", "ttft_p99<=20ms")) == settings


@pytest.mark.parametrize(
    ("by", "limits", "times"),
    [
        ("rate", "ttft_p99<=200ms,e2e_p99<=5s", {"settle": 50, "min_duration": 750}),
        ("rate", "ttft_p99<=200ms", {"settle": 3, "min_duration": 30}),
        ("scale", "req_per_s>=500,error_rate<=1%", {"settle": 3, "min_duration": 30}),
        ("scale", "tpot_p99<=400ms", {"settle": 4, "min_duration": 60}),
        ("concurrency", "e2e_p99<=5s", {}),
        ("agents", "e2e_p99<=5s", {}),
    ],
)
def test_cells_last_as_the_longest_limit_asks_for(by, limits, times):
    plan = SearchPlan.make(by, limits)
    assert plan.times() == times
    if by == "rate":
        assert plan.highest == min(10_000, MOST_REQUESTS / sum(times.values()))


def test_both_forms_of_limits_make_the_same_cells() -> None:
    texts = ("ttft_ms=500,tpot_ms=30", "ttft_p99<=500ms,tpot_p99<=30ms")
    plans = [SearchPlan.make("rate", limits).model_copy(update={"limits": "the same"}) for limits in texts]
    assert plans[0] == plans[1]
    first, second = (EngineSearch(SearchPlan.make("rate", limits), "a") for limits in texts)
    assert first._terms == second._terms


def test_a_search_counts_what_its_loads_count() -> None:
    plans = [SearchPlan.make(by, "e2e_p99<=5s", of="sessions") for by in ("rate", "concurrency", "scale")]
    assert [plan.unit for plan in plans] == ["sessions/s", "sessions in flight", "times the trace's own rate"]
    assert plans[1].amount(1) == "1 session in flight"
    agents = SearchPlan.make("agents", "e2e_p99<=5s", of="sessions")
    assert [agents.amount(number) for number in (1, 4)] == ["1 agent", "4 agents"]
    four = agents.load(4, like=ClosedLoop(concurrency=1, of="sessions"))
    assert four == ClosedLoop(concurrency=4, of="sessions")
    higher = plans[0].load(8, like=RequestRate(req_per_s=2, of="sessions"))
    assert higher == RequestRate(req_per_s=8, of="sessions")


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ("", "a search needs limits"),
        ("--slo ttft_p99<=+10%", "relative to another run"),
        ("--slo latency_p99<=10ms", "there is no statistic 'latency_p99'"),
        ("--slo ttft_p99<=200ms --n 50", "needs at least 110 requests"),
        ("--slo ttft_p99<=200ms --n 50 --min-duration 5", "needs at least 100 requests"),
        ("--slo ttft_p99<=200ms --n 50 --by concurrency", "needs at least 100 requests"),
        ("--slo ttft_p50<=200ms --lowest 9 --highest 3", "--lowest 9 is not below"),
        ("--slo ttft_p50<=200ms --first 1e6", "is not between"),
        ("--slo ttft_p50<=200ms --by concurrency --highest 2.4", "is no whole number"),
        ("--slo ttft_p50<=200ms --by agents --lowest 1.5", "--by agents: 1.5 is no whole number"),
        ("--slo ttft_p50<=200ms --by agents", "--by agents needs jobs"),
        ("--slo ttft_p50<=200ms --by agents --dataset builtin", "--by agents needs jobs"),
        ("--slo ttft_p50<=200ms --lowest -1", "--lowest: Input should be greater than 0"),
        ("--slo ttft_p50<=200ms --lowest 0", "--lowest: Input should be greater than 0"),
        ("--slo ttft_p50<=200ms --highest nan", "--highest: Input should be a finite number"),
        ("--slo ttft_p50>=200ms", "asks for the worse"),
        ("--slo output_tok_per_s<=200", "asks for the worse"),
        ("--slo ttft_p50<=1s,output_tok_per_s>=200", "cannot use 'output_tok_per_s>=200'"),
        ("--slo session_p50<=9s", "the limit 'session_p50<=9s' needs sessions"),
        ("--slo ttft_p50<=0ms", "no load meets the limit"),
        ("--slo error_rate<=100%", "every load meets the limit"),
        ("--slo ttft_p50<=200kg", "is not a limit"),
    ],
)
def test_what_cannot_be_searched(options: str, fault: str, bench: Callable[..., Any]) -> None:
    done = bench("search", "--base-url", "http://127.0.0.1:9", *options.split())
    assert done.code == 2
    assert fault in done.err and "Traceback" not in done.err


@pytest.mark.parametrize(
    ("limit", "said", "ended"),
    [
        ("ttft_p50<=1ms", "at most", "the limits are not met at the lightest load, 1 request in flight"),
        ("ttft_p50<=60s", "at least", "the limits are met at the heaviest load, 4 requests in flight"),
    ],
)
def test_limits_that_no_load_or_every_load_meets(limit, said, ended, start_mock, bench, tmp_path):
    server = start_mock("--ttft-ms", "20")
    few = ("--cells", "3", "--n", "8", "--highest", "4", "--out", str(tmp_path))
    done = bench("search", "--server", f"only={server.url}", "--slo", limit, *SHORT, *few)
    assert done.code == 0, done.err
    run = Path(done.out.strip()).parent
    [found] = json.loads((run / "online_results.json").read_text())["search"]["engines"]
    assert found["ended"] == ended and ended in (run / "report.html").read_text()
    assert said in (run / "summary.md").read_text()
