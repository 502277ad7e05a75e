"""Runs that continue where they ended, and folders that cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from harness.compare.compare_runs import compare_runs
from harness.datasets.dataset import load_dataset
from harness.errors import UsageError
from harness.records.parquet import read_records
from harness.runs.events import CellDone, EngineStarting, Started
from harness.runs.run_state import Run
from harness.schema.load import ClosedLoop
from harness.schema.results import OnlineResults
from harness.schema.run_info import Code
from tests.harness.measured import resume_online, run_online

from .conftest import Make, Watcher, edit, interrupted, journal, report_of

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("any_lag")]


def in_flight(requests: pd.DataFrame) -> int:
    """The largest number of requests in flight in a cell."""
    begun, ended = requests["t_sent"], requests["t_end"]
    return max(int(((begun <= t) & (ended > t)).sum()) for t in begun)


def test_a_sweep_interrupted_in_its_middle_is_finished(shared_mock: Any, settings_for: Make) -> None:
    """1, 2 and 4 requests in flight against one server, whichever order they are asked for in."""
    closed = {"concurrency": "4,1,2", "n": 5, "rounds": 3, "input_len": 9, "output_len": 4}
    folder = interrupted(settings_for(shared_mock.url, scales=[1.0], warmup=1, **closed), cell=1)
    before = (folder / "journal.jsonl").read_text()
    watch = Watcher()
    same, results = resume_online(folder, watch)
    assert same == folder and watch.measured == [2] and watch.of(Started)[0].done == 2
    assert (folder / "journal.jsonl").read_text().startswith(before)
    assert [line["load"]["concurrency"] for line in journal(folder)] == [1, 2, 4]
    pooled = [summary for summary in results.summaries if summary.repeat is None]
    assert [(summary.load, summary.num_success) for summary in pooled] == [
        (ClosedLoop(concurrency=count), sent) for count, sent in ((1, 5), (2, 6), (4, 12))
    ]
    requests = read_records(folder).requests
    assert not requests.duplicated(["cell", "request"]).any() and not (folder / "raw").exists()
    assert results == OnlineResults.model_validate_json((folder / "online_results.json").read_bytes())
    assert results.skipped == []
    found = {json.loads(str(load))["concurrency"]: in_flight(rows) for load, rows in requests.groupby("load")}
    assert found == {1: 1, 2: 2, 4: 4}
    assert [hits.possible for hits in results.prefixes] == [0, 0, 0]
    page = report_of(folder)
    assert all(f"{held} in flight" in page for held in (1, 2, 4))


KINDS: list[dict[str, Any]] = [
    {"request_rate": "60,90", "arrivals": "gamma:2", "n": 12, "input_len": "uniform:4:20", "output_len": 5},
    {
        **{"concurrency": "2,3", "n": 4, "dataset": "DATASET", "max_output_len": 6},
        **{"model": "random:gpt2-tiny", "turns": "recorded"},
    },
]


@pytest.mark.parametrize("given", KINDS)
def test_other_loads_continue_with_the_same_requests(shared_mock, settings_for, tmp_path, given):
    """What is sent after an interruption is what would have been sent without."""
    talk: list[dict[str, Any]] = [
        {"role": "user", "content": "one two three"}, {"role": "assistant", "content": "four five six"},
        {"role": "user", "content": "seven eight", "think_s": 0.01}, {"role": "assistant", "content": "nine"},
    ]  # fmt: skip
    lines = [{"messages": [{**part, "content": f"{part['content']} {i}"} for part in talk]} for i in range(5)]
    file = tmp_path / "talk.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    given = {key: f"jsonl:{file}" if value == "DATASET" else value for key, value in given.items()}
    settings = settings_for(shared_mock.url, prompt_nonce=1, accuracy=False, **given)
    columns = ["cell", "request", "input_tokens", "output_tokens", "session", "turn"]
    whole, results = run_online(settings)
    folder = interrupted(settings)
    watch = Watcher()
    _, again = resume_online(folder, watch)
    assert watch.measured == [1]
    a, b = (read_records(path).requests for path in (whole, folder))
    pd.testing.assert_frame_equal(a[columns], b[columns])
    assert a["error"].isna().all() and b["error"].isna().all()
    if "request_rate" in given:
        assert abs(a["t_sched"] - b["t_sched"]).max() < 1e-6
        assert {summary.load.kind for summary in again.summaries} == {"rate"}
    assert [summary.session_ms.n > 0 for summary in again.summaries] == ["turns" in given] * 4
    assert again.meta.trace == results.meta.trace
    same = compare_runs(whole, folder)
    assert [obstacle.reason for obstacle in same.obstacles if obstacle.name != "invalid"] == []
    if "dataset" in given:
        file.write_text(json.dumps({"prompt": "another"}))
        load_dataset.cache_clear()
        (folder / "online_results.json").unlink()
        kept = (folder / "journal.jsonl").read_text().splitlines()
        (folder / "journal.jsonl").write_text(kept[0] + "\n")
        with pytest.raises(UsageError, match="not the one that the run began with"):
            resume_online(folder)


def test_a_complete_run_is_only_written_again(finished: Path) -> None:
    kept = {path: path.read_bytes() for path in finished.iterdir() if path.suffix in (".json", ".jsonl")}
    (finished / "online_results.json").unlink()
    resume_online(finished, watch := Watcher())
    assert watch.of(CellDone) == watch.of(EngineStarting) == []
    assert {path: path.read_bytes() for path in kept} == kept


@pytest.mark.parametrize("content", [None, b"", b'{"cell": 0'])
def test_a_complete_run_without_its_journal_is_not_measured_again(finished, content):
    before = (finished / "requests.parquet").read_bytes()
    (finished / "journal.jsonl").unlink()
    if content is not None:
        (finished / "journal.jsonl").write_bytes(content)
    with pytest.raises(UsageError, match=r"has raw times and nothing in journal\.jsonl"):
        resume_online(finished)
    assert (finished / "requests.parquet").read_bytes() == before


def test_what_has_changed_since_is_refused(shared_mock, settings_for, python_with, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,5,5\n0.1,6,6\n")
    settings = settings_for(
        shared_mock.url, engines="openai,roseinfer", model="random:gpt2-tiny", trace=str(trace)
    )
    folder = interrupted(settings)

    python_with("roseinfer", {})
    with pytest.raises(UsageError, match="roseinfer is part of the run and not here any more"):
        resume_online(folder)

    launch = {"engine": "roseinfer", "label": "roseinfer", "version": "0.1"}
    edit(folder / "run.json", lambda run: run["launches"].append(launch))
    python_with("roseinfer", {"rosebench": "0.2", "torch": "2"})
    with pytest.raises(UsageError, match=r"roseinfer was 0\.1 in the run and is 0\.2 now"):
        resume_online(folder)

    edit(folder / "run.json", lambda run: run["launches"].pop())
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,5,5\n0.1,6,7\n")
    with pytest.raises(UsageError, match="the trace is not the one"):
        resume_online(folder)

    edit(folder / "run.json", lambda run: run["settings"].update(scales=[3.0]))
    with pytest.raises(UsageError, match=r"cell 0 of .* is not one of the run's settings"):
        resume_online(folder)


def test_other_code_and_another_machine_are_refused(half_done: Path) -> None:
    folder = half_done
    kept = json.loads((folder / "run.json").read_text())
    hints = {"0123456789abcdef": "0123456789,", "0123456789abcdef-dirty": "0123456789 with its changes"}
    for revision, hint in {**hints, None: kept["versions"]["rosebench"]}.items():
        began = kept["versions"] | {"git_rev": revision, "source": "f" * 16}
        (folder / "run.json").write_text(json.dumps(kept | {"versions": began}))
        with pytest.raises(UsageError, match=r"other code of bench and roseinfer: f{16}, and this") as raised:
            resume_online(folder)
        assert hint in raised.value.hint
    edit(folder / "run.json", lambda run: run.update(versions=kept["versions"]))
    edit(folder / "run.json", lambda run: run["environment"]["cpu"].update(model="another"))
    with pytest.raises(UsageError, match=r"the run began on cpu, another, \d+, and this is cpu, "):
        resume_online(folder)
    passing = {"load_average": [9, 9, 9], "memory_available": 1, "kernel": "1"}
    edit(folder / "run.json", lambda run: run.update(environment=kept["environment"] | passing))
    assert resume_online(folder)[1].skipped == []


def test_a_server_that_serves_another_model_is_not_measured_on(half_done: Path) -> None:
    edit(half_done / "run.json", lambda run: run["launches"][0]["settings"].update(model="another"))
    _, results = resume_online(half_done, watch := Watcher())
    [fault] = results.skipped
    assert watch.measured == [] and fault.load == results.meta.settings.loads[1]
    assert "openai served another in the run" in fault.reason and fault.hint


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"holds no run: there is no run\.json"),
        ("{", r"run\.json is damaged .*: Invalid JSON"),
        ({"created": None}, r"run\.json is not as .*: created: "),
        ({"settings": {"nn": 1}}, r"run\.json is not as .*: settings"),
        ({"schema_version": 2}, r"schema_version"),
        ({"kind": "offline"}, "nothing was to be measured"),
    ],
)
def test_what_is_no_run(content: Any, message: str, tmp_path: Path) -> None:
    whole = {
        "schema_version": 1, "kind": "online", "created": "now", "command": [], "settings": {},
        "versions": {"rosebench": "1", "python": "3"},
    }  # fmt: skip
    if content is not None:
        text = content if isinstance(content, str) else json.dumps(whole | content)
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(UsageError, match=message) as raised:
        resume_online(tmp_path)
    assert "\n" not in raised.value.message
    with pytest.raises(UsageError, match="holds no run: No such file"):
        resume_online(tmp_path / "absent", Watcher())


def test_code_that_changed_since_is_kept(half_done: Path) -> None:
    """The code of an engine that is developed; that of bench and roseinfer would be refused."""
    run = Run.open(half_done)
    record = run.info.launches[0].model_copy(update={"label": "vLLM", "engine": "vllm", "ready_s": 1.0})
    before, after = (Code(folder="/src", sha256=digit * 16) for digit in "12")
    for code in (before, before, after, before):
        run.launched(record.model_copy(update={"codes": [code]}))
    assert Run.open(half_done).info.launches[-1].codes == [before, after]
