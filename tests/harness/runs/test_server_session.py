"""What a server is sent and what it says of itself: chats, shared prompts, caches, metrics."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from prometheus_client.samples import Sample

from harness.compare.compare_runs import compare_runs
from harness.engines.adapters.openai import OpenAI
from harness.engines.running import reported as reported_pages
from harness.engines.server_pages import get
from harness.errors import UsageError
from harness.loadgen.load_plan import Target
from harness.records.parquet import read_records
from harness.report.notices import facts_of
from harness.report.tables.saved_work import prefix_table
from harness.runs import server_session
from harness.runs.folder import RUN
from harness.runs.reader import Run, load_run
from harness.runs.server_session import ServerSession
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import OnlineResults
from harness.schema.run_info import LaunchRecord
from harness.schema.setting_types import HIDDEN
from harness.workload import PlannedRequest
from tests.harness.measured import resume_online, run_online

from .conftest import Make, Watcher, interrupted, journal, report_of

pytestmark = pytest.mark.usefixtures("any_lag")

REASONING, CHAT_OUTPUT, CHAT_INPUT, CHATS = 5, 12, 64, 6
#: The mock server counts words; this many more are its template's.
TEMPLATE = 9
CHAT = {
    "concurrency": [2], "n": CHATS, "input_len": CHAT_INPUT, "output_len": CHAT_OUTPUT,
    "warmup": 0, "calibrate": False, "check_answers": False, "endpoint": "chat",
}  # fmt: skip


@pytest.fixture
def chatting(start_mock: Any) -> Callable[..., Any]:
    """Starts a server that thinks before it answers."""

    def start(**behaviour: Any) -> Any:
        chat = {"chat": True, "reasoning": REASONING, "template_tokens": TEMPLATE, **behaviour}
        return start_mock("--context", "512", script=[chat])

    return start


def chat_settings(server: Any, tmp_path: Path, **given: Any) -> OnlineSettings:
    return OnlineSettings(server={"mine": server.url}, out=tmp_path / "runs", **{**CHAT, **given})


def test_answers_share_the_memory_that_a_user_allows(chatting: Any, tmp_path: Path) -> None:
    server = chatting(padding=1 << 13)  # an answer that comes in one read is never in flight
    folder, _ = run_online(chat_settings(server, tmp_path, tokenizer="none", max_memory=1e-5))
    assert read_records(folder).requests["error"].tolist() == ["memory"] * CHATS


@pytest.mark.usefixtures("chunks_as_read")
@pytest.mark.parametrize("counts", [{}, {"token_ids": False}, {"token_ids": False, "usage": "continuous"}])
def test_what_is_measured_is_what_the_server_wrote(
    chatting: Any, tmp_path: Path, counts: dict[str, Any]
) -> None:
    server = chatting(**counts)
    folder, results = run_online(chat_settings(server, tmp_path, tokenizer="none"))
    [summary, _] = results.summaries
    assert (summary.label, summary.num_success, summary.errors) == ("mine", CHATS, {})
    assert summary.ttfo_ms.n == summary.ttft_ms.n == CHATS
    records = read_records(folder)
    served = [request for request in server.served_requests if request.writes][-CHATS:]
    assert [sum(tokens for _, tokens in request.writes) for request in served] == [CHAT_OUTPUT] * CHATS
    assert list(records.requests["completion_tokens"]) == [CHAT_OUTPUT] * CHATS
    assert (
        list(records.requests["prompt_tokens"])
        == list(records.requests["input_tokens"])
        == [CHAT_INPUT] * CHATS
    )
    for row in records.requests.itertuples():
        chunks = records.chunks[records.chunks["request"] == row.request]
        before = chunks.loc[chunks["t"] < row.t_answer, "tokens"].sum()
        until = chunks.loc[chunks["t"] <= row.t_answer, "tokens"].sum()
        assert before <= REASONING < until
    wrote = sorted(request.t_answer - request.t_received for request in served)
    read = sorted(records.requests["t_answer"] - records.requests["t_sent"])
    assert all(client >= server - 1e-3 for client, server in zip(read, wrote, strict=True))


@pytest.mark.parametrize(
    ("label", "numbers"),
    [("sticky", [5, 5, 6, 3]), ("sticky (A)", [5, 5, 6, 3]), ("spread", [0, 1, 2, 3])],
)
def test_requests_of_a_session_stay_together_or_go_to_each_in_turn(label: str, numbers: list[int]) -> None:
    servers = {"sticky": "http://h,http://i", "spread": "http://h,http://i"}
    routes = "sticky=sticky,spread=round-robin"
    settings = OnlineSettings(server=servers, route=routes, session_header="X-S")
    target = Target("h", 80, "/", others=(Target("i", 80, "/"),))
    record = LaunchRecord(engine="openai", label=label, side_of=label[:6] if "(" in label else None)
    session: Any = SimpleNamespace(
        resolved=SimpleNamespace(settings=settings), server=SimpleNamespace(target=target, record=record)
    )
    prompt = np.zeros(0, np.int32)
    requests = [PlannedRequest(i, None, prompt, 1, session=each) for i, each in enumerate((5, 5, 6, None))]
    places, headers = zip(*ServerSession._ways(session, requests), strict=True)
    assert list(places) == [number % 2 for number in numbers]
    assert [header.rpartition("-")[2] for header in headers] == list(map(str, numbers))
    assert len({header.rpartition("-")[0] for header in headers}) == 1


def test_each_server_is_asked_for_its_version_once(
    chatting: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = {"a": chatting().url, "b": chatting().url}
    targets: list[Target] = []

    def reading(target: Target, path: str, seconds: float) -> str | None:
        if path == "/version":
            targets.append(target)
        return get(target, path, seconds)

    monkeypatch.setattr(reported_pages, "get", reading)
    settings = OnlineSettings(server=servers, out=tmp_path / "runs", **CHAT | {"repeats": 2})
    _, results = run_online(settings)
    assert len({target.port for target in targets}) == len(targets) == 2
    assert len([summary for summary in results.summaries if summary.repeat is not None]) == 4


def test_a_server_that_is_of_another_version_is_not_measured_on(
    chatting: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = iter(("1.0", "1.0", "2.0"))

    def reading(target: Target, path: str, seconds: float) -> str | None:
        if path == "/version":
            return json.dumps({"version": next(versions)})
        return get(target, path, seconds)

    monkeypatch.setattr(reported_pages, "get", reading)
    _, results = run_online(chat_settings(chatting(), tmp_path, repeats=3))
    [fault] = results.skipped
    assert (fault.repeat, fault.reason) == (2, "mine was version 1.0 in the run and is 2.0 now")
    assert sorted(each.repeat for each in results.summaries if each.repeat is not None) == [0, 1]


def test_several_servers_are_several_rows_and_secrets_are_in_no_file(
    chatting: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-of-the-environment")
    given = {"header": {"X-Plain": "sk-as-it-is", "X-Env": "env:SOME_KEY"}, "api_key_env": "SOME_KEY"}
    given |= {"tokenizer": "none", "body": {"user": "env:SOME_KEY"}}
    server = chatting()
    both = {"a": server.url, "b": server.url}
    settings = chat_settings(server, tmp_path, **given).model_copy(update={"server": both})
    folder, results = run_online(settings)
    assert [summary.label for summary in results.summaries if summary.repeat is None] == ["a", "b"]
    info = json.loads((folder / RUN).read_text())
    facts = info["launches"][0]["facts"]
    assert facts["prompts"]["value"] == f"chat, counted by the server, at least {TEMPLATE + 1} tokens"
    assert facts["context"] == {"value": 512, "source": "GET /v1/models"}

    assert "sk-of-the-environment" in {request.user for request in server.served_requests}
    for file in folder.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert b"sk-of-the-environment" not in content and b"sk-as-it-is" not in content, file
    assert info["settings"]["header"] == {"X-Plain": HIDDEN, "X-Env": "env:SOME_KEY"}


TURNS = """\
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
def turns_settings(tmp_path: Path, start_mock: Any) -> OnlineSettings:
    (tmp_path / "trace.csv").write_text(TURNS)
    return OnlineSettings(
        base_url=start_mock("--ttft-ms", "60").url, trace=str(tmp_path / "trace.csv"), scales=[1.0],
        max_model_len=1024, warmup=0, calibrate=False, check_answers=False, out=tmp_path / "runs",
    )  # fmt: skip


def test_turns_and_what_could_be_cached(turns_settings: OnlineSettings) -> None:
    folder, results = run_online(turns_settings)
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


HITS, QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"


def test_what_the_engine_counts_stands_beside(
    turns_settings: OnlineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counters of two engine cores rise by 16 each, and by 100, with each look before and after a cell."""
    looks: list[Target] = []

    def read(target: Target) -> list[Sample]:
        looks.append(target)
        hits = [Sample(HITS, {"engine": engine}, 16 * len(looks)) for engine in "01"]
        return [*hits, Sample(QUERIES, {}, 100 * len(looks))]

    monkeypatch.setattr(OpenAI, "server_series", {"prefix_hits": HITS, "prefix_queries": QUERIES})
    monkeypatch.setattr(OpenAI, "histograms", {"queue_wait_ms": "vllm:request_queue_time_seconds"})
    monkeypatch.setattr(server_session, "read_samples", read)
    _, results = run_online(turns_settings)
    assert len(looks) == 2
    [hits] = results.prefixes
    assert hits.possible == pytest.approx(POSSIBLE) and hits.reported == pytest.approx(0.32)
    assert hits.source == "GET /metrics: vllm:prefix_cache_hits_total, vllm:prefix_cache_queries_total"


CACHED_LOAD = {"concurrency": [2], "n": 12, "input_len": 64, "output_len": 4}
LOADED = {"concurrency": [8], "n": 80}
Start = Callable[..., str]


@pytest.fixture
def caching(start_mock: Any) -> Start:
    """Starts a server that answers a prompt after 30 ms, and one that it knows after 1 ms."""

    return lambda **behaviour: start_mock(script=[{"ttft_ms": 30, "cached_ttft_ms": 1, **behaviour}]).url


def ttft(results: OnlineResults) -> list[float]:
    return [summary.ttft_ms.p50 for summary in results.summaries if summary.repeat is not None]


def kinds(results: OnlineResults) -> list[set[str]]:
    wanted = {"cached", "unreported"}
    return [{str(notice.kind) for notice in summary.notices} & wanted for summary in results.summaries]


def test_the_same_command_meets_no_cache_and_the_same_nonce_is_noticed(
    caching: Start, settings_for: Make
) -> None:
    url = caching(cached_tokens=0)
    nonces = []
    for _ in range(2):
        _, results = run_online(settings_for(url, **CACHED_LOAD))
        assert ttft(results)[0] > 25
        assert kinds(results) == [set(), set()]
        nonces.append(results.meta.settings.prompt_nonce)
    assert nonces[0] != nonces[1]

    _, again = run_online(settings_for(url, prompt_nonce=nonces[1], **CACHED_LOAD))
    assert kinds(again) == [{"cached"}, {"cached"}]
    [hits] = again.prefixes
    assert hits.possible == 0 and hits.reported == pytest.approx(63 / 64)


def test_the_same_dataset_twice_meets_no_cache_unless_that_was_asked_for(
    caching: Start, settings_for: Make
) -> None:
    load = {"concurrency": [2], "n": 8, "dataset": "builtin", "max_output_len": 4, "max_model_len": 4096}
    url = caching(cached_tokens=0)
    for _ in range(2):
        _, results = run_online(settings_for(url, **load))
        assert ttft(results)[0] > 25
    for is_known in (False, True):
        folder, results = run_online(settings_for(url, same_prompts=True, **load))
        assert (ttft(results)[0] < 25) == is_known
        assert "same_prompts" in {fact.kind for fact in facts_of(load_run(folder))}


def test_the_opening_burst_is_in_the_figures_and_told_apart(start_mock: Any, settings_for: Make) -> None:
    script = [{"ttft_ms": 25 * (place + 1)} for place in range(8)] + [{"ttft_ms": 30}] * 72
    folder, _ = run_online(settings_for(start_mock(script=script).url, **CACHED_LOAD | LOADED))
    [fact] = [fact for fact in facts_of(load_run(folder)) if fact.kind == "opening"]
    assert fact.values["requests"] == 8
    assert float(fact.values["ttft_p99_ms"]) > 150 > float(fact.values["later_p99_ms"])


@pytest.mark.parametrize(("behaviour", "is_stated"), [({}, True), ({"cached_ttft_ms": 30}, False)])
def test_a_cache_that_a_server_does_not_report_shows_in_its_times(
    caching: Start, settings_for: Make, behaviour: dict[str, float], is_stated: bool
) -> None:
    folder, results = run_online(settings_for(caching(**behaviour), **CACHED_LOAD | {"warmup": 1}))
    assert kinds(results) == [{"unreported"}, {"unreported"}]
    facts = [fact for fact in facts_of(load_run(folder)) if fact.kind == "hidden_cache"]
    assert len(facts) == is_stated
    for fact in facts:
        assert float(fact.values["first_ms"]) > 25 > float(fact.values["again_ms"])


@pytest.mark.parametrize("given", [None, 7])
def test_a_cell_that_is_sent_again_meets_no_cache_unless_the_nonce_was_given(
    caching: Start, settings_for: Make, given: int | None
) -> None:
    settings = settings_for(caching(cached_tokens=0), repeats=2, prompt_nonce=given, **CACHED_LOAD)
    folder = interrupted(settings)
    nonce = json.loads((folder / "run.json").read_text())["settings"]["prompt_nonce"]
    run_online(settings.model_copy(update={"prompt_nonce": nonce}))  # what is left
    _, results = resume_online(folder)
    before, again = (entry["prompt_nonce"] for entry in journal(folder))
    assert before is None and results.meta.settings.prompt_nonce == nonce
    if given is None:
        assert min(ttft(results)) > 25 and again not in (None, nonce)
        assert kinds(results)[1] == set()
    else:
        assert kinds(results)[1] == {"cached"} and again is None


def test_a_and_b_of_one_server_have_prompts_of_their_own(caching: Start, settings_for: Make) -> None:
    settings = settings_for(caching(cached_tokens=0), aa=True, repeats=2, **CACHED_LOAD)
    _, results = run_online(settings)
    assert len(ttft(results)) == 4 and min(ttft(results)) > 25
    assert all(not found for found in kinds(results))


def test_the_processor_time_of_a_server_whose_process_is_named(shared_mock: Any, settings_for: Make) -> None:
    settings = settings_for(shared_mock.url, server_pid=str(shared_mock.process.pid), **CACHED_LOAD)
    _, results = run_online(settings)
    assert [summary.engine_cpu_s is None for summary in results.summaries] == [False] * len(results.summaries)
    assert "idle_cores" in results.meta.launches[0].facts


def test_two_served_models_are_not_comparable(shared_mock: Any, settings_for: Make) -> None:
    url = shared_mock.url
    load = CACHED_LOAD | {"n": 4}
    folders = [run_online(settings_for(url, served_model=name, **load))[0] for name in ("a", "b")]
    folders.append(shutil.copytree(folders[0], folders[0].with_name("copy")))
    [obstacle] = compare_runs(folders[0], folders[1]).obstacles
    assert (obstacle.name, obstacle.allowed) == ("served-model", False)
    assert obstacle.reason == "openai serves a in A, openai serves b in B"
    assert compare_runs(folders[0], folders[2]).obstacles == []
    [obstacle] = compare_runs(folders[0], folders[1], allowed=["served-model"]).obstacles
    assert obstacle.allowed


@pytest.mark.integration
def test_a_served_name_that_is_no_model(settings_for: Make) -> None:
    with pytest.raises(UsageError) as raised:
        run_online(settings_for("http://127.0.0.1:1", model="./no-such"))
    assert raised.value.hint.endswith("a model of the running server is named with --served-model")


METRICS_LOAD = {"concurrency": [6], "n": 24, "input_len": 4, "output_len": 20}


def test_readings_are_on_the_clock_of_the_chunks(start_mock: Any, settings_for: Make) -> None:
    """Three of six requests are answered at once, in 0.12 s each."""
    server = start_mock("--metrics", "--slots", "3", "--ttft-ms", "25", "--itl-ms", "5")
    folder, _ = run_online(
        settings_for(server.url, metrics_interval=0.05, **METRICS_LOAD), ["bench"], Watcher()
    )
    run = load_run(folder)
    assert isinstance(run, Run) and not (folder / "raw").exists()
    served, requests = server.served_requests[-24:], run.requests.sort_values("t_sent")
    t0 = np.median([answer.t_received for answer in served] - requests["t_sent"].to_numpy())
    starts = np.array([answer.t_started for answer in served]) - t0
    ends = np.array([answer.t_end for answer in served]) - t0
    compared, changes = 0, np.concatenate([starts, ends])
    for at, took_ms, reported in run.server[["t", "took_ms", "running"]].to_numpy(np.float64):
        near = took_ms / 2e3 + 0.01
        if not (abs(changes - at) <= near).any():  # nothing began or ended around it
            assert reported == ((starts <= at) & (ends > at)).sum()
            compared += 1
    assert compared >= 3 and run.server["running"].max() == 3 and run.server["waiting"].max() == 3
    text = report_of(folder)
    assert "What the servers say of themselves" in text


def test_a_server_is_not_asked_where_that_is_off(start_mock: Any, settings_for: Make) -> None:
    server = start_mock("--metrics")
    folder, _ = run_online(
        settings_for(server.url, server_metrics=False, **METRICS_LOAD | {"n": 2}), ["bench"], Watcher()
    )
    assert not (folder / "server.parquet").exists()
    assert "say of themselves" not in report_of(folder)
