"""A report of tables that are not held is the report of those that are, to the last byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from harness.metrics import on_disk
from harness.report.render import write_report
from harness.runs.reader import load_run
from harness.schema.fairness import EngineFact, Ledger, LedgerRow
from harness.schema.machines import HostCell, HostClock, MachineLoad, Power
from harness.schema.results import OnlineResults
from tests.harness.report.conftest import ENGINES, make_online

NODES = ("left", "right")


def host(name: str, requests: int) -> HostCell:
    clock = HostClock(
        offset_s=0, bound_ms=0.1, round_trip_ms=0.1, drift_ppm=0, drift_bound_ppm=1, start_bound_ms=0.1
    )
    return HostCell(name=name, clients=[0], requests=requests, clock=clock)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """With failures, lengths that differ, two nodes that sent, power, and a setting that differs."""
    folder = make_online(tmp_path / "run", engines=ENGINES[1:3], scales=(0.4, 1.6), n=60, longest=12)
    requests = pd.read_parquet(folder / "requests.parquet")
    requests["host"] = [NODES[request % 3 == 0] for request in requests["request"]]
    requests.loc[requests["request"] % 7 == 0, "finish_reason"] = "stop"
    requests.to_parquet(folder / "requests.parquet")
    path = folder / "online_results.json"
    results = OnlineResults.model_validate_json(path.read_text())
    cells = [int(cell) for cell in requests["cell"].unique()]
    facts = {
        label: EngineFact(value=limit, source="log")
        for label, limit in zip(requests["label"].unique(), (64, 256, 8), strict=False)
    }
    row = LedgerRow(key="kv_tokens", name="KV cache (tokens)", facts={**facts}, agreement="differs")
    machine = MachineLoad(
        seconds=9, samples=9, cpus=2, own_cpu_s=1, foreign_cores_mean=0, foreign_cores_max=0, steal_share=0,
        power=[Power(begin=begin, end=begin + 1, watts=50) for begin in range(9)],
    )  # fmt: skip
    changed = {
        "senders": {cell: [host(name, 30) for name in NODES] for cell in cells},
        "nodes": {cell: NODES[cell % 2] for cell in cells},
        "machines": dict.fromkeys(cells, machine),
        "ledger": Ledger(labels=[*facts], rows=[row]),
    }
    path.write_text(results.model_copy(update=changed).model_dump_json())
    yield folder


def test_a_report_of_long_tables_has_the_same_bytes(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = write_report([run], tmp_path / "held.html").read_bytes()
    for name, most in (("HELD", 100), ("HELD_REQUESTS", 20), ("PART", 500)):
        monkeypatch.setattr(on_disk, name, most)
    assert not isinstance(load_run(run, trust=True).chunks, pd.DataFrame)  # type: ignore[union-attr]
    long = write_report([run], tmp_path / "long.html").read_bytes()
    for shown in (b"Nodes that sent", b"Lengths", b"Power, W", b"KV cache"):
        assert shown in held
    assert long == held
