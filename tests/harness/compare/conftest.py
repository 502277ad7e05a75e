"""Run folders of invented speeds, as `bench online` leaves them, without its results."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.compare.stored_run import StoredRun
from harness.records.columns import CHUNKS, REQUESTS
from harness.schema.load import ClosedLoop, Counted, Load, TraceLoad, load_text
from harness.schema.online_settings import OnlineSettings
from harness.schema.run_info import RunInfo, TraceRecord, Versions
from tests.harness.measured import made_once

LABELS = {"roseinfer": "roseinfer", "vllm": "vLLM", "sglang": "SGLang"}
Make = Callable[..., Path]


def cell(
    number: int, engine: str, load: Load, repeat: int, n: int, factor: float, seed: int, failed: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    rng = np.random.default_rng([seed, number])
    sent = np.arange(n) * 0.1 * (load.scale if isinstance(load, TraceLoad) else 1)
    first = sent + 0.05 * factor * rng.lognormal(0, 0.1, n)
    last = first + 0.04 * factor * rng.lognormal(0, 0.1, n)
    error = [None if i >= failed else "timeout" for i in range(n)]
    requests: dict[str, Any] = dict.fromkeys(REQUESTS.names, [None] * n)
    requests |= {
        "cell": [number] * n, "engine": [engine] * n, "label": [LABELS[engine]] * n,
        "load": [load_text(load)] * n, "repeat": [repeat] * n,
        "request": np.arange(n), "input_tokens": [10] * n, "output_tokens": [5] * n,
        "t_sched": sent, "t_sent": sent, "t_first": first, "t_last": last, "t_end": last,
        "completion_tokens": [5] * n, "chunks": [2] * n, "error": error, "client": [0] * n,
    }  # fmt: skip
    both = np.column_stack([first, last]).ravel()
    chunks = {
        "cell": [number] * 2 * n, "request": np.repeat(np.arange(n), 2), "t": both, "tokens": [1, 4] * n,
    }  # fmt: skip
    return requests, chunks


def write_run(
    folder: Path,
    *,
    slower: float = 1.0,
    spread: float = 0.01,
    repeats: int = 3,
    n: int = 120,
    scales: tuple[float, ...] = (1.0,),
    engines: tuple[str, ...] = ("vllm",),
    failed: int | dict[float, int] = 0,
    lost: tuple[int, ...] = (),
    trace: dict[str, Any] | None = None,
    environment: dict[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """Write a run folder; its name is the seed of its times.

    `failed` requests of each cell fail, at every scale alike or as many as each scale has. Repeats that are
    `lost` have no cell.
    """
    folder.mkdir()
    seed = sum(map(ord, folder.name))
    noise = np.random.default_rng(seed)
    failures = failed if isinstance(failed, dict) else dict.fromkeys(scales, failed)
    held = settings.get("concurrency")
    loads: list[Load] = [TraceLoad(scale=scale) for scale in scales]
    of: Counted = "sessions" if settings.get("turns") else "requests"
    loads = [ClosedLoop(of=of, concurrency=k) for k in held] if held else loads
    identities = [(e, load, r) for r in range(repeats) for e in engines for load in loads]
    identities = [identity for identity in identities if identity[2] not in lost]
    tables = [
        cell(i, *identity, n, slower * noise.lognormal(0, spread), seed, failures.get(identity[1].value, 0))
        for i, identity in enumerate(identities)
    ]
    for schema, position, file in ((REQUESTS, 0, "requests"), (CHUNKS, 1, "chunks")):
        table = pa.concat_tables(pa.table(both[position], schema=schema) for both in tables)
        pq.write_table(table, folder / f"{file}.parquet")
    given: dict[str, Any] = {
        "model": "random:gpt2",
        "device": "cpu",
        "dtype": "bf16",
        "engines": list(engines),
    }
    given |= {"scales": list(scales), "repeats": repeats, "max_model_len": 1024, "clients": 1, "n": n}
    record = {"name": "made-up", "origin": "here", "requests": n, "fit": "drop"}
    info = RunInfo(
        created="2025-01-01T00:00:00+00:00",
        command=["bench", "online"],
        settings=OnlineSettings.model_validate(given | settings),
        environment=environment or {"cpu": {"model": "a CPU", "usable_cores": 2}},
        versions=Versions(rosebench="0", python="3.12"),
        trace=TraceRecord.model_validate(record | (trace or {})),
    )
    (folder / "run.json").write_text(info.model_dump_json())
    return folder


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """make(name, slower=1.0, …) returns the folder of a run, which no test changes."""
    return made_once(tmp_path_factory, write_run)


@pytest.fixture
def make_own(tmp_path: Path) -> Make:
    """Writes a run for a test that changes its files."""
    return lambda name, **given: write_run(tmp_path / name, **given)


read_run = StoredRun.read


@cache
def read_state(path: Path, state: object) -> StoredRun:
    return read_run(path)


@pytest.fixture(autouse=True)
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is read again only where its files have changed."""

    def read(path: Path) -> StoredRun:
        files = [(file, file.stat()) for file in sorted(path.glob("*"))]
        return read_state(path, tuple((file, stat.st_mtime_ns, stat.st_size) for file, stat in files))

    monkeypatch.setattr(StoredRun, "read", staticmethod(read))
