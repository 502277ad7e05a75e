"""Runs that are kept, shown and judged by."""

from __future__ import annotations

import csv
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from harness.cli.history import app
from harness.compare.stored_run import StoredRun
from harness.errors import UsageError
from harness.history.gate import gate
from harness.history.store import Store
from harness.report.tables.history import history_table
from harness.report.text.numbers import DASH
from harness.schema.fairness import EngineFact
from harness.schema.limits import parse_gate
from harness.schema.run_info import LaunchRecord
from tests.harness.report.conftest import ENGINES, make_online

Made = Callable[..., Path]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("history") / "online_1"
    return make_online(place, engines=ENGINES[::2], closed=(4,), repeats=3, n=60, faults=False)


@pytest.fixture
def again(first: Path, tmp_path: Path) -> Made:
    """The same run on another day, each request so many times as slow."""

    def make(day: int, slower: float = 1.0, revision: str = "abc", **settings: object) -> Path:
        folder = tmp_path / f"online_day{day}"
        shutil.copytree(first, folder)
        for name in ("run.json", "online_results.json"):
            content = json.loads((folder / name).read_text())
            meta = content.get("meta", content)
            meta["created"] = f"2026-03-{day:02d}T12:00:00Z"
            meta["versions"]["git_rev"] = revision
            meta["settings"] |= settings
            (folder / name).write_text(json.dumps(content))
        requests = pq.read_table(folder / "requests.parquet").to_pandas()
        for name in ("t_first", "t_last", "t_end"):
            requests[name] = requests["t_sent"] + slower * (requests[name] - requests["t_sent"])
        schema = pq.read_schema(folder / "requests.parquet")
        table = pa.Table.from_pandas(requests, schema, preserve_index=False)
        pq.write_table(table, folder / "requests.parquet")
        return folder

    return make


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "h.sqlite", create=True) as history:
        yield history


def test_what_comes_back_is_what_was_estimated(first: Path, store: Store) -> None:
    run = StoredRun.read(first)
    assert store.add(run) == {} and store.add(run) == {}
    [past] = store.runs()
    assert past.name == "online_1" and "Xeon" in past.machine
    for label, loads in run.cells.items():
        for load in loads:
            made, kept = run.estimates(label, load), store.estimates(past, label, load)
            assert made.keys() == kept.keys()
            for key, estimate in made.items():
                assert kept[key].each.tolist() == estimate.each.tolist()
                assert (kept[key].value, kept[key].within) == (estimate.value, estimate.within)
                assert (kept[key].missing, kept[key].dependent) == (estimate.missing, estimate.dependent)


def test_a_gate_against_the_last_the_best_and_a_revision(again: Made, store: Store) -> None:
    runs = [again(1, 1.0, "aaa1"), again(2, 0.5, "bbb2"), again(3, 2.0, "ccc3")]
    now, terms = StoredRun.read(again(4, 2.02)), parse_gate("ttft_p50<=+50%")
    for run in runs:
        store.add(StoredRun.read(run))
    outcomes = {against: gate(store, now, against, terms) for against in ("last", "best", "aaa", "bbb2")}
    outcomes["errors first"] = gate(store, now, "best", [*parse_gate("error_rate<=50%"), *terms])
    with pytest.raises(UsageError, match="no such run of revision 'zzz'"):
        gate(store, now, "zzz", terms)
    with pytest.raises(UsageError, match="no revision is given"):
        gate(store, now, "", terms)
    assert {against: found.outcome for against, found in outcomes.items()} == {
        "last": "pass",
        "best": "regression",
        "errors first": "regression",
        "aaa": "regression",
        "bbb2": "regression",
    }
    assert outcomes["last"].a == "history: online_day3" and outcomes["best"].a == "history: online_day2"
    assert outcomes["best"].gates[0].value == pytest.approx(4.04, rel=0.05)


def test_a_copy_of_a_run_is_no_baseline_of_it(again: Made, tmp_path: Path, store: Store) -> None:
    run = again(1)
    copy = StoredRun.read(shutil.copytree(run, tmp_path / "candidate"))
    store.add(StoredRun.read(run))
    with pytest.raises(UsageError, match="the history has no other run"):
        gate(store, copy, "last", parse_gate("ttft_p50<=+10%"))


def test_an_engine_without_a_past_passes_no_gate_unseen(again: Made, store: Store) -> None:
    before, now = StoredRun.read(again(1)), StoredRun.read(again(2))
    *_, new = now.cells
    before = replace(before, cells={label: before.cells[label] for label in before.cells if label != new})
    store.add(before)
    found = {
        text: gate(store, now, against, parse_gate(text))
        for text in ("ttft_p50<=+50%", "ttft_p50<=1ms", "error_rate<=50%")
        for against in ("best", "last")
    }
    outcomes = {text: results.gates[-1].outcome for text, results in found.items()}
    assert outcomes == {
        "ttft_p50<=+50%": "inconclusive",
        "ttft_p50<=1ms": "regression",
        "error_rate<=50%": "pass",
    }
    relative = found["ttft_p50<=+50%"]
    assert relative.outcome == "inconclusive" and relative.gates[0].outcome == "pass"
    assert relative.gates[-1].engine_b == new and "the history has no" in relative.gates[-1].reason


def test_another_run_of_the_same_second_replaces_none(again: Made, tmp_path: Path, store: Store) -> None:
    first_run, other = again(1), again(2, 1.5)
    (tmp_path / "elsewhere").mkdir()
    moved = other.rename(tmp_path / "elsewhere" / first_run.name)
    text = (moved / "run.json").read_text()
    (moved / "run.json").write_text(text.replace("2026-03-02T12", "2026-03-01T12"))
    store.add(StoredRun.read(first_run))
    with pytest.raises(UsageError, match="another run that is called online_day1"):
        store.add(StoredRun.read(moved))
    [kept] = store.entries("ttft_ms", "p50")[:1]
    store.add(StoredRun.read(first_run))
    store.add(StoredRun.read(moved.rename(moved.with_name("online_other"))))
    assert len(store.runs()) == 2
    assert kept.past.name == "online_day1"


def answering(run: StoredRun, end: str) -> None:
    taking(run, "answers", end)


def asked(run: StoredRun, prompts: str) -> None:
    taking(run, "prompts", prompts)


def taking(run: StoredRun, name: str, value: str) -> None:
    fact = EngineFact(value=value, source="found by asking")
    run.info.launches.insert(0, LaunchRecord(engine="vllm", label="vLLM", facts={name: fact}))


def serving(run: StoredRun, model: str) -> None:
    launch = LaunchRecord(engine="openai", version="1", label="vLLM", settings={"model": model})
    run.info.launches.append(launch)


def test_other_settings_are_no_baseline(again: Made, store: Store) -> None:
    now = StoredRun.read(again(4))
    others: list[dict[str, Any]] = [{"dtype": "fp32"}, {"n": 6400}, {"rounds": 99}]
    for day, other in enumerate(others, 1):
        store.add(StoredRun.read(again(day, **other)))
    store.add(now)
    assert len(store.runs()) == 4
    with pytest.raises(UsageError, match="no other run with the settings"):
        gate(store, now, "last", parse_gate("ttft_p50<=+10%"))


@pytest.mark.parametrize(
    ("change", "other", "same"),
    [
        (answering, "at the limit", "on their own"),
        (asked, "text, counted by the tokenizer", "token ids"),
        (serving, "large", "small"),
    ],
)
def test_other_ways_to_ask_and_models_of_a_server_are_no_baseline(again, store, change, other, same):
    past, alike, now = (StoredRun.read(again(day)) for day in (1, 2, 3))
    for run, value in ((past, other), (alike, same), (now, same)):
        change(run, value)
    terms = parse_gate("ttft_p50<=+50%")
    store.add(past)
    with pytest.raises(UsageError, match="no other run with the settings"):
        gate(store, now, "last", terms)
    store.add(alike)
    assert gate(store, now, "last", terms).a == "history: online_day2"


def test_what_a_run_was_to_measure_and_did_not_is_no_pass(again: Made, store: Store) -> None:
    now = StoredRun.read(again(2))
    now.info.order.append(("gone", 0))
    assert store.add(StoredRun.read(again(1))) == {}
    left_out = store.add(now)
    assert left_out.keys() == {"gone"} and "not measured" in left_out["gone"]
    with pytest.raises(UsageError, match=r"^gone at .* was not measured"):
        gate(store, now, "last", parse_gate("ttft_p50<=+10%"))


def test_a_repeat_that_a_server_did_not_outlive_is_no_pass(again: Made, store: Store) -> None:
    now = again(2)
    for name in ("requests", "chunks"):
        table = pq.read_table(now / f"{name}.parquet")
        cells = sorted(set(table["cell"].to_pylist()))
        pq.write_table(table.filter(pc.field("cell") != cells[-1]), now / f"{name}.parquet")
    run = StoredRun.read(now)
    store.add(StoredRun.read(again(1)))
    assert any("one of its repeats is missing" in reason for reason in store.add(run).values())
    with pytest.raises(UsageError, match=r"a repeat is missing: .* repeat 3: not measured yet") as raised:
        gate(store, run, "last", parse_gate("ttft_p50<=+50%"))
    assert raised.value.hint.startswith("finish it: bench online --resume")


@pytest.mark.parametrize(("failing", "gates"), [(30, "error_rate<=1%"), (1, "error_rate<=60%")])
def test_requests_that_fail_are_judged_by_a_gate_on_them(again, store, failing, gates):
    """And make their cells invalid, which are not judged by any other."""
    now = again(2)
    requests = pq.read_table(now / "requests.parquet")
    errors = ["timeout" if request < failing else None for request in requests["request"].to_pylist()]
    column = requests.schema.get_field_index("error")
    failed = requests.set_column(column, requests.schema.field("error"), pa.array(errors, pa.string()))
    pq.write_table(failed, now / "requests.parquet")
    terms = parse_gate(f"{gates}, ttft_p50<=+10%")
    store.add(StoredRun.read(again(1)))
    if failing == 1:
        with pytest.raises(UsageError, match="failed 1, requests 60"):
            gate(store, StoredRun.read(now), "last", terms)
        return
    judged = gate(store, StoredRun.read(now), "last", terms)
    assert judged.outcome == "regression"
    assert {(gated.gate, gated.outcome) for gated in judged.gates} == {(gates, "regression")}


def test_the_commands(again: Made, tmp_path: Path) -> None:
    store = ["--store", str(tmp_path / "new" / "h.sqlite")]
    runs = [str(again(day, slower)) for day, slower in enumerate((1, 1.001, 1.5, 1.501), 1)]
    run = CliRunner()
    done = run.invoke(app, ["add", *runs, *store], catch_exceptions=False)
    assert done.exit_code == 0 and done.output.count("added online_day") == 4
    shown = run.invoke(app, ["show", "--metric", "ttft_p50", "--engine", "vLLM", "--csv", *store])
    lines = shown.output.splitlines()
    assert len(lines) == 1 + 4 and "roseinfer" not in shown.output
    rows = list(csv.DictReader(lines))
    ratios = [float(row["ratio"] or 1) for row in rows]
    assert ratios == [1, 1, pytest.approx(1.5, rel=0.01), 1]
    values = [[float(row[head]) for head in ("lo", "TTFT p50, ms", "hi")] for row in rows]
    assert all(lo < value < hi for lo, value, hi in values)
    done = run.invoke(app, ["gate", runs[-1], "--gate", "ttft_p50<=+25%", *store])
    assert done.exit_code == 0 and "verdict: pass" in done.output
    done = run.invoke(app, ["gate", runs[-1], "--gate", "ttft_p50<=+25%", "--against", "best", *store])
    assert done.exit_code == 1 and "verdict: regression" in done.output


def test_runs_are_removed_all_or_none(again: Made, tmp_path: Path) -> None:
    store, folders = tmp_path / "h.sqlite", [again(day) for day in (1, 2)]
    at, run = ["--store", str(store)], CliRunner()
    with Store.open(store, create=True) as history:
        for folder in folders:
            history.add(StoredRun.read(folder))
    with pytest.raises(UsageError, match="the history has no run absent") as raised:
        run.invoke(app, ["remove", "online_day1", "absent", *at], catch_exceptions=False)
    assert raised.value.hint == "it has online_day2 and online_day1; `bench history show` lists them"
    done = run.invoke(app, ["remove", "online_day1", f"{folders[0]}/", *at], catch_exceptions=False)
    assert (done.exit_code, done.output) == (0, f"removed online_day1 from {store}\n")
    with Store.open(store) as history:
        [left] = history.runs()
        assert left.name == "online_day2" and {
            entry.past.id for entry in history.entries("ttft_ms", "p50")
        } == {left.id}
    run.invoke(app, ["remove", "online_day2", *at], catch_exceptions=False)
    with pytest.raises(UsageError, match="has no run online_day2") as raised:
        run.invoke(app, ["remove", "online_day2", *at], catch_exceptions=False)
    assert raised.value.hint == "it is empty"


def test_of_runs_of_one_name_the_one_to_remove_is_named(again: Made, tmp_path: Path) -> None:
    store, run, folder = tmp_path / "h.sqlite", CliRunner(), again(1)
    with Store.open(store, create=True) as history:
        history.add(StoredRun.read(folder))
        history.add(StoredRun.read(again(2).rename(tmp_path / "other")))
    connection = sqlite3.connect(store)
    with connection:
        connection.execute("UPDATE run SET name = ?", (folder.name,))
    connection.close()
    command = ["remove", folder.name, "--store", str(store)]
    with pytest.raises(UsageError, match="2 runs of the history are named online_day1") as raised:
        run.invoke(app, command, catch_exceptions=False)
    assert raised.value.hint == "give --created, one of 2026-03-01T12:00:00Z and 2026-03-02T12:00:00Z"
    with pytest.raises(UsageError, match="no run online_day1 of yesterday"):
        run.invoke(app, [*command, "--created", "yesterday"], catch_exceptions=False)
    assert run.invoke(app, [*command, "--created", "2026-03-01T12:00:00Z"]).exit_code == 0
    with Store.open(store) as history:
        assert [past.created for past in history.runs()] == ["2026-03-02T12:00:00Z"]


def test_a_run_of_which_nothing_counts_is_not_added(again: Made, tmp_path: Path) -> None:
    run, store = again(1), tmp_path / "h.sqlite"
    requests = pq.read_table(run / "requests.parquet")
    late = pa.array([sent + 1.0 for sent in requests["t_sent"].to_pylist()])
    for name in ("t_sent", "t_first"):
        requests = requests.set_column(requests.schema.get_field_index(name), name, late)
    pq.write_table(requests, run / "requests.parquet")
    done = CliRunner().invoke(app, ["add", str(run), "--store", str(store)])
    assert "vLLM is left out because one of its cells is invalid: " in done.output
    assert "nothing of this run was added: every engine of online_day1 is left out" in done.output
    assert done.exit_code == 3
    with Store.open(store) as history:
        assert history.runs() == []


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "there is no history"), (b"no database, but of some length" * 99, "cannot be used")],
)
def test_what_is_no_history(tmp_path: Path, content: bytes | None, said: str) -> None:
    file = tmp_path / "h.sqlite"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError, match=said) as raised, Store.open(file) as store:
        store.runs()
    assert raised.value.hint


@pytest.mark.parametrize(
    ("command", "fault"),
    [("PRAGMA user_version = 99", "newer version"), ("CREATE TABLE theirs (x)", "of another program")],
)
def test_another_database_is_left_alone(tmp_path: Path, command: str, fault: str) -> None:
    file = tmp_path / "theirs.sqlite"
    with sqlite3.connect(file) as other:
        other.execute(command)
    before = file.read_bytes()
    with pytest.raises(UsageError, match=fault), Store.open(file, create=True):
        pass
    other.close()
    assert file.read_bytes() == before


def test_several_processes_begin_a_history_at_once(tmp_path: Path) -> None:
    threads = 4
    for attempt in range(10):
        file, at_once = tmp_path / f"{attempt}.sqlite", Barrier(threads)

        def runs(_: int, file: Path = file, at_once: Barrier = at_once) -> int:
            at_once.wait()
            with Store.open(file, create=True) as store:
                return len(store.runs())

        with ThreadPoolExecutor(threads) as pool:
            assert [*pool.map(runs, range(threads))] == [0] * threads


def test_a_withheld_percentile_is_a_dash(tmp_path: Path, store: Store) -> None:
    run = make_online(
        tmp_path / "online_few", engines=ENGINES[:1], closed=(4,), repeats=1, n=40, faults=False
    )
    store.add(StoredRun.read(run))
    shown = {name: history_table(store.entries("ttft_ms", name), "ttft_ms", name) for name in ("p90", "p99")}
    assert [row[5].text == DASH for table in shown.values() for row in table.rows] == [False, True]
    assert "60 more samples" in shown["p99"].rows[0][5].remark
    assert "–: p99 needs 100 samples; up to 60 are missing." in shown["p99"].notes
    assert not any("samples" in note for note in shown["p90"].notes)
