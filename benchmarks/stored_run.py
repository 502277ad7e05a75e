"""A stored run of `bench online` with many rows, made without sending anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness.records.columns import CHUNKS, REQUESTS
from harness.schema.fairness import Fact, Ledger, LedgerRow
from harness.schema.machines import HostCell, HostClock, MachineLoad, Power
from harness.schema.results import OnlineResults
from tests.harness.report.conftest import ENGINES, make_online

#: Rows that are made at a time, of either table.
PART = 1 << 18
NODES = ("left", "right")


def stored_run(folder: Path, requests: int, tokens: int) -> None:
    """One repeat of two engines, with so many requests together, each answered with so many chunks.

    Lengths differ, two nodes sent, one setting of the engines differs and their power is known, so that the
    report has all that is made of the tables.
    """
    make_online(folder, engines=ENGINES[::2][:2], closed=(8,), repeats=1, n=100, faults=False)
    small = pq.read_table(folder / "requests.parquet")
    each = requests // 2
    with (
        pq.ParquetWriter(folder / "many.parquet", REQUESTS, compression="zstd") as rows,
        pq.ParquetWriter(folder / "chunks.parquet", CHUNKS, compression="zstd") as chunks,
    ):
        for cell in range(2):
            first = {name: small[name][100 * cell].as_py() for name in REQUESTS.names}
            for begin in range(0, each, max(1, PART // tokens)):
                index = np.arange(begin, min(each, begin + max(1, PART // tokens)))
                for writer, table in zip((rows, chunks), made(first, index, tokens), strict=True):
                    writer.write_table(table)
    (folder / "many.parquet").replace(folder / "requests.parquet")
    describe(folder / "online_results.json", each)


def made(first: dict[str, Any], index: np.ndarray[Any, Any], tokens: int) -> tuple[pa.Table, pa.Table]:
    """Rows of both tables, of requests with those numbers and otherwise like `first`."""
    rng = np.random.default_rng([first["cell"], int(index[0])])
    due = 0.001 * index
    sent = due + rng.exponential(2e-4, index.size)
    gaps = rng.lognormal(np.log(0.01), 0.3, (index.size, tokens))
    t = sent[:, None] + np.cumsum(gaps, 1)
    counted = rng.integers(1, 3, (index.size, tokens))
    own = {
        "request": index, "t_sched": due, "t_sent": sent, "t_head": sent + 1e-3, "t_first": t[:, 0],
        "t_answer": t[:, 0], "t_last": t[:, -1], "t_end": t[:, -1] + 1e-4,
        "completion_tokens": counted.sum(1), "host": np.where(index % 2, *NODES),
    }  # fmt: skip
    columns = [
        pa.array(own[field.name]).cast(field.type)
        if field.name in own
        else pa.repeat(pa.scalar(first[field.name], field.type), index.size)
        for field in REQUESTS
    ]
    cells = np.full(index.size * tokens, first["cell"])
    of_chunks = [cells, np.repeat(index, tokens), t.ravel(), counted.ravel()]
    chunks = [pa.array(column).cast(field.type) for column, field in zip(of_chunks, CHUNKS, strict=True)]
    return pa.table(columns, schema=REQUESTS), pa.table(chunks, schema=CHUNKS)


def describe(path: Path, each: int) -> None:
    """Let the results have nodes, power and a setting that differs."""
    results = OnlineResults.model_validate_json(path.read_text())
    clock = HostClock(
        offset_s=0, bound_ms=0.1, round_trip_ms=0.1, drift_ppm=0, drift_bound_ppm=1, start_bound_ms=0.1
    )
    hosts = [HostCell(name=name, clients=[0], requests=each // 2, clock=clock) for name in NODES]
    machine = MachineLoad(
        seconds=9, samples=9, cpus=2, own_cpu_s=1, foreign_cores_mean=0, foreign_cores_max=0, steal_share=0,
        power=[Power(begin=begin, end=begin + 1, watts=50) for begin in range(9)],
    )  # fmt: skip
    labels = [summary.label for summary in results.summaries if summary.repeat is None]
    facts = {label: Fact(value=64 << place, source="log") for place, label in enumerate(labels)}
    row = LedgerRow(key="kv_tokens", name="KV cache (tokens)", facts={**facts}, agreement="differs")
    changed = {
        "senders": dict.fromkeys(range(2), hosts),
        "machines": dict.fromkeys(range(2), machine),
        "ledger": Ledger(labels=labels, rows=[row]),
    }
    path.write_text(results.model_copy(update=changed).model_dump_json())
