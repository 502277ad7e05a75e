"""Runs of `bench offline` that are kept, shown and judged by."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from docs.examples.export_history import tracked
from harness.cli.history import app
from harness.compare.stored_run import StoredRun
from harness.errors import UsageError
from harness.history.gate import gate
from harness.history.store import Store
from harness.schema.limits import parse_gate
from harness.schema.load import Batch
from tests.harness.measured import made_once
from tests.harness.offline_runs import IN_PROCESS, SERVED, write_run
from tests.harness.report.conftest import ENGINES, make_online

#: Of the prompts of each repeat.
WORK = (1.0, 1.31, 0.82, 1.1)
GATE = parse_gate("output_tok_per_s>=-3%")
Made = Callable[..., Path]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """make(day, speed=1.0, …) is the run of a day; its repeats differ by their prompts and a little."""
    make = made_once(tmp_path_factory, write_run)

    def run(day: int, speed: float = 1.0, **given: object) -> Path:
        noise = [1 + 0.002 * ((7 * day + 3 * repeat) % 5 - 2) for repeat in range(len(WORK))]
        rates = [100 * speed * w * n for w, n in zip(WORK, noise, strict=True)]
        return make(f"day{day}", {SERVED: rates, IN_PROCESS: rates}, day=day, **given)

    return run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "h.sqlite"


def test_what_comes_back_is_what_was_estimated(make: Made, file: Path) -> None:
    run, load = StoredRun.read(make(1)), Batch(prompts=8)
    with Store.open(file, create=True) as store:
        assert store.add(run) == {}
        [past] = store.runs()
        kept, made = store.estimates(past, SERVED, load), run.estimates(SERVED, load)
        assert kept.keys() == made.keys() and len(made) == 3
        for key, estimate in made.items():
            assert kept[key].each.tolist() == estimate.each.tolist() and kept[key].work == estimate.work
        assert [result.name for result in tracked(store)] == [
            f"{label}, batch of 8 prompts" for label in (SERVED, IN_PROCESS)
        ]
        assert next(tracked(store)).settings["load_prompts"] == 8


def test_a_gate_pairs_the_repeats_of_the_same_prompts(make: Made, file: Path) -> None:
    """The rates of prompts spread by 20 %; a gate of 3 % is decided all the same."""
    with Store.open(file, create=True) as store:
        store.add(StoredRun.read(make(1)))
        same, slower = (StoredRun.read(make(day, speed)) for day, speed in ((2, 1.0), (3, 0.95)))
        assert gate(store, same, "last", GATE).outcome == "pass"
        assert gate(store, slower, "last", GATE).outcome == "regression"
        with pytest.raises(UsageError, match="bench offline does not measure"):
            gate(store, same, "last", parse_gate("ttft_p99<=+10%"))


def test_other_batches_are_no_baseline(make: Made, file: Path) -> None:
    with Store.open(file, create=True) as store:
        for day, other in enumerate(({"seed": 7}, {"num_prompts": 16}, {"input_len": 64}), 2):
            store.add(StoredRun.read(make(day, **other)))
        assert len(store.runs()) == 3
        with pytest.raises(UsageError, match=r"no other run with the settings|none of the run's engines"):
            gate(store, StoredRun.read(make(1)), "last", GATE)


def test_an_engine_without_all_its_repeats_is_left_out(make: Made, file: Path) -> None:
    run = StoredRun.read(make(1, failed=[(SERVED, 2), *((IN_PROCESS, repeat) for repeat in range(4))]))
    with Store.open(file, create=True) as store:
        left_out = store.add(run)
        assert "repeat 3: not measured: it died" in left_out[SERVED]
        assert "was not measured" in left_out[IN_PROCESS] and store.runs() == []
        with pytest.raises(UsageError, match="was not measured") as raised:
            gate(store, run, "last", GATE)
    assert raised.value.hint.startswith(f"finish it: bench offline --resume {run.path}; or repeat it")


def test_the_commands(make: Made, file: Path) -> None:
    store = ["--store", str(file)]
    runs = [str(make(day, speed)) for day, speed in enumerate((1.0, 1.0, 0.8, 0.8), 1)]
    run = CliRunner()
    assert run.invoke(app, ["add", *runs, *store], catch_exceptions=False).exit_code == 0
    show = ["show", "--metric", "output_tok_per_s", "--engine", SERVED, "--csv", *store]
    heads, *lines = run.invoke(app, show, catch_exceptions=False).output.splitlines()
    assert heads.startswith("engine,prompts,") and len(lines) == 4
    assert [bool(line.rsplit(",", 1)[1]) for line in lines] == [False, False, True, False]
    assert float(lines[2].rsplit(",", 1)[1]) == pytest.approx(0.8, rel=0.01)
    best = run.invoke(app, ["gate", runs[-1], "--gate", "output_tok_per_s>=-3%", "--against", "best", *store])
    assert best.exit_code == 1 and "verdict: regression" in best.output
    with pytest.raises(UsageError, match="the history has no ttft_p99") as raised:
        run.invoke(app, ["show", *store], catch_exceptions=False)
    assert "output_tok_per_s, req_per_s, total_tok_per_s" in raised.value.hint
    online = make_online(file.with_name("online"), engines=ENGINES[:1], closed=(4,), n=30, faults=False)
    assert run.invoke(app, ["add", str(online), *store], catch_exceptions=False).exit_code == 0
    heads, *lines = run.invoke(app, show, catch_exceptions=False).output.splitlines()
    assert heads.startswith("engine,machine,load,")
    assert {row["load"] for row in csv.DictReader([heads, *lines])} == {"4 in flight", "batch of 8 prompts"}
