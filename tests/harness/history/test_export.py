"""The history as files of experiment trackers, read back by their own packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from docs.examples.export_history import Tracked, to_mlflow, to_wandb, tracked
from harness.compare.stored_run import StoredRun
from harness.history.store import Store
from tests.harness.report.conftest import ENGINES, make_online

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Tracked]:
    """Of one run of two engines at two loads, three repeats."""
    place = tmp_path_factory.mktemp("export")
    run = make_online(place / "online_1", engines=ENGINES[::2], closed=(4, 8), repeats=3, n=60, faults=False)
    with Store.open(place / "h.sqlite", create=True) as store:
        store.add(StoredRun.read(run))
        return list(tracked(store))


def test_an_engine_at_a_load_is_a_run(found: list[Tracked]) -> None:
    assert [result.name for result in found] == [
        f"{label}, {count} in flight" for label in ("roseinfer", "vLLM") for count in (4, 8)
    ]
    assert len({result.key for result in found}) == 4
    for result in found:
        assert result.settings["load_concurrency"] in (4, 8) and result.settings["engine"] in (
            "roseinfer",
            "vllm",
        )
        assert "base_url" not in result.settings and "engines" not in result.settings
        assert result.values["tpot_p50_low"] <= result.values["tpot_p50"] <= result.values["tpot_p50_high"]
        assert len(result.each["output_tok_per_s"]) == 3
        assert "ttft_p99" not in result.values, "60 requests do not support it"


def test_mlflow_reads_what_was_written(found: list[Tracked], tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    file, added = to_mlflow(found, tmp_path, "bench")
    assert added == 4
    assert to_mlflow(found, tmp_path, "bench") == (file, 0), "nothing is there twice"
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{file}")
    [experiment] = [e for e in client.search_experiments() if e.name == "bench"]
    by_name = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert by_name.keys() == {result.name for result in found}
    for result in found:
        run = by_name[result.name]
        assert {name: run.data.metrics[name] for name in result.values} == pytest.approx(result.values)
        assert run.data.params["engine"] == result.settings["engine"]
        history = client.get_metric_history(run.info.run_id, "repeats/tpot_p50")
        assert [point.value for point in sorted(history, key=lambda p: p.step)] == result.each["tpot_p50"]


def records_of(file: Path) -> list[Any]:
    """What W&B's own classes read of a file: a header, then records as in a log of LevelDB, each in parts
    with a checksum (4 bytes), their length (2) and a type (1: whole, 2: first, 3: middle, 4: last)."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, whole, found = file.read_bytes(), 7, b"", []
    assert content.startswith(b":W&B")
    while len(content) - at >= 7:
        if (left := 32768 - at % 32768) < 7:  # the end of a block, which no part begins in
            at += left
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            found.append(Record.FromString(whole))
            whole = b""
    return found


def test_wandb_reads_what_was_written(found: list[Tracked], tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    place, written = to_wandb(found[:1], tmp_path, "bench")
    [file] = place.glob("offline-run-*/run-*.wandb")
    assert written == 1
    records = records_of(file)
    [run] = [record.run for record in records if record.HasField("run")]
    assert (run.project, run.display_name, run.run_group) == ("bench", found[0].name, found[0].run)
    history = [record.history for record in records if record.HasField("history")]
    assert len(history) == 3
    summary = {
        "/".join(item.nested_key) or item.key: item.value_json
        for record in records
        if record.HasField("summary")
        for item in record.summary.update
    }
    assert float(summary["tpot_p50"]) == pytest.approx(found[0].values["tpot_p50"])
