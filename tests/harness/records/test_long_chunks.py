"""Tables of chunks that are not held give the same figures as those that are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import BenchError, UsageError
from harness.metrics import on_disk
from harness.metrics.chunk_parts import of_cells, parts_of
from harness.metrics.percentiles import STRIDE, Ordered
from harness.metrics.samples import by_load, pool, split
from harness.metrics.summary import summarize
from harness.profiling.level import measure_levels
from harness.records.cell import CellRecords
from harness.records.columns import CHUNKS
from harness.records.columns import REQUESTS as REQUESTS_SCHEMA
from harness.records.long_chunks import LongTable, Received, RunChunks
from harness.records.long_requests import requests_frame
from harness.records.parquet import assemble, read_records, write_cell
from harness.report.charts.over_time import _rates
from harness.schema.limits import Slo
from harness.schema.load import ClosedLoop, load_text
from harness.schema.machines import Power
from harness.schema.setting_types import Window
from tests.harness.metrics.conftest import build

CELLS, REQUESTS = 4, 30


def cell(number: int) -> CellRecords:
    """Chunks of several tokens and of one; an answer of one chunk, and one that failed."""
    rng = np.random.default_rng(number)
    rows: list[dict[str, Any]] = []
    for request in range(REQUESTS):
        sent = 0.1 * request
        times = sent + np.cumsum(rng.choice([0.01, 0.01, 0.0173, 0.4], 1 if request == 7 else 36))
        stream = list(zip(times, rng.integers(1, 4, times.size), strict=True))
        rows.append(
            {
                "cell": number,
                "repeat": number % 2,
                "load": load_text(ClosedLoop(concurrency=1 + number // 2)),
                "request": request,
                "t_sched": sent,
                "t_sent": sent,
                "chunks": stream,
                "error": "truncated" if request == 11 else None,
            }
        )
    return CellRecords(*build(rows))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for number in range(CELLS):
        write_cell(tmp_path, number, cell(number))
    assemble(tmp_path)
    return tmp_path


@pytest.fixture
def little_memory(run: Path) -> Iterator[None]:
    """Reads `run` part by part, each of few rows."""
    with few_rows():
        yield


@contextmanager
def few_rows() -> Iterator[None]:
    """Few rows are held."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_disk, "HELD", 100)
        patch.setattr(on_disk, "HELD_REQUESTS", 20)
        patch.setattr(on_disk, "PART", 64)
        yield


def held() -> CellRecords:
    cells = [cell(number) for number in range(CELLS)]
    chunks = pd.concat([part for each in cells for part in parts_of(each.chunks)], ignore_index=True)
    return CellRecords(pd.concat([each.requests for each in cells], ignore_index=True), chunks)


def alike(a: object, b: object) -> None:
    """Sums are made in another order, so that their last bit may differ; nothing else may."""
    if isinstance(a, dict):
        assert isinstance(b, dict) and a.keys() == b.keys()
        for name in a:
            if name == "mean" and a[name] is not None:
                assert a[name] == pytest.approx(b[name], rel=1e-12)
            else:
                alike(a[name], b[name])
    else:
        assert a == b


@pytest.mark.usefixtures("little_memory")
def test_of_no_cells_there_is_nothing(run: Path) -> None:
    """As of a journal without a cell beside tables of an earlier one."""
    chunks = read_records(run, set()).chunks
    assert isinstance(chunks, RunChunks)
    assert [*chunks.parts({1})] == []


@pytest.mark.parametrize("cut", [None, Window(start_s=0.5, end_s=4.0)])
def test_figures_are_those_of_the_held_table(run: Path, cut: Window | None) -> None:
    whole, slo = held(), Slo(itl_ms=90, ttft_ms=150)
    expected = summarize(whole.requests, whole.chunks, slo=slo, cut=cut)
    with few_rows():
        long = read_records(run)
        assert isinstance(long.chunks, RunChunks) and len([*parts_of(long.chunks)]) > 50
        found = summarize(long.requests, long.chunks, slo=slo, cut=cut)
    assert len(found) == len(expected) == 6
    for ours, theirs in zip(found, expected, strict=True):
        alike(ours.model_dump(), theirs.model_dump())
    assert found[0].itl_ms.n > found[0].icl_ms.n > 800


def test_requests_that_are_not_held_are_mapped_files(run: Path, little_memory: None) -> None:
    [group, *_] = split(read_records(run).requests, read_records(run).chunks)
    held_in = [group.good["t_sent"].to_numpy(), group.metrics["ttft_ms"].to_numpy()]
    held_in += [group.sample("tpot_ms").values, group.sample("tpot_ms").request]
    assert [type(owner(values)) for values in held_in] == [mmap] * 4


def owner(values: Any) -> object:
    """What has the memory of an array."""
    while isinstance(values, np.ndarray | memoryview):
        values = values.base if isinstance(values, np.ndarray) else values.obj
    return values


def test_a_cell_of_requests_that_are_not_held_is_stored_as_others_are(tmp_path: Path) -> None:
    rows = [
        {"error": "timeout" if index == 3 else None, "session": None if index % 2 else index // 4,
         "prompt_tokens": None if index < 50 else 7, "t_sent": None if index == 9 else 0.1 * index}
        for index in range(90)
    ]  # fmt: skip
    frame = build(rows)[0]
    table = pa.Table.from_pandas(frame, REQUESTS_SCHEMA, preserve_index=False)
    with few_rows():
        long = requests_frame((table.slice(begin, 11) for begin in range(0, 90, 11)), 90)
        write_cell(tmp_path, 0, CellRecords(long, build([])[1]))
        assert pq.read_table(tmp_path / "raw/cell-00000.requests.parquet").equals(table)


def test_percentiles_of_a_pool_are_those_of_the_held_table(run: Path, little_memory: None) -> None:
    long, whole = read_records(run), held()
    groups = [
        # in any order of requests
        by_load(split(table.requests.sort_values("request", ascending=False), table.chunks))
        for table in (long, whole)
    ]
    for ours, theirs in zip(*groups, strict=True):
        a, b = pool(ours).sample("itl_ms").ordered(), pool(theirs).sample("itl_ms").ordered()
        qs = np.linspace(0, 100, 301).tolist()
        assert np.array_equal(a.percentiles(qs), b.percentiles(qs))
        assert np.array_equal(pool(ours).first_chunks, pool(theirs).first_chunks)


def test_what_else_is_made_of_chunks_is_the_same(run: Path, little_memory: None) -> None:
    long, whole = read_records(run), held()
    assert measure_levels(long.requests, long.chunks) == measure_levels(whole.requests, whole.chunks)
    parts = [Power(begin=a, end=a + 0.7, watts=1) for a in np.arange(0, 6, 0.7)]
    for cells in ([2], [0, 3]):
        assert _rates(of_cells(long.chunks, cells), parts) == _rates(of_cells(whole.chunks, cells), parts)


def test_a_run_that_is_resumed_is_one_table_in_the_order_of_cells(run: Path, little_memory: None) -> None:
    before = pq.read_table(run / "chunks.parquet")
    pq.write_table(before.filter(pa.compute.is_in(before["cell"], pa.array([0, 3]))), run / "chunks.parquet")
    requests = pq.read_table(run / "requests.parquet")
    kept = requests.filter(pa.compute.is_in(requests["cell"], pa.array([0, 3])))
    pq.write_table(kept, run / "requests.parquet")
    for number in (1, 2, 3, 9):
        write_cell(run, number, cell(number))
    chunks = read_records(run, {0, 1, 2, 3}).chunks
    expected = before.to_pandas()
    pd.testing.assert_frame_equal(pd.concat(parts_of(chunks), ignore_index=True), expected)
    two = pd.concat(parts_of(of_cells(chunks, [1, 3])), ignore_index=True)
    pd.testing.assert_frame_equal(two, expected[expected["cell"].isin([1, 3])].reset_index(drop=True))
    assemble(run, {0, 1, 2, 3})
    assert pq.read_table(run / "chunks.parquet").equals(before)
    (run / "chunks.parquet").unlink()
    with pytest.raises(UsageError, match="changed while it was read"):
        next(parts_of(chunks))


def test_a_long_table_is_checked_and_brought_into_order(run: Path, little_memory: None) -> None:
    path = run / "chunks.parquet"
    table = pq.read_table(path)
    pq.write_table(table.take(list(reversed(range(len(table))))), path)
    [chunks] = parts_of(read_records(run).chunks)
    pd.testing.assert_frame_equal(chunks, table.to_pandas())
    broken = table.to_pandas()
    broken.loc[len(broken) - 3, "t"] = np.nan
    pq.write_table(pa.Table.from_pandas(broken, CHUNKS, preserve_index=False), path)
    with pytest.raises(UsageError, match=f"in row {len(broken) - 3}"):
        read_records(run)


def test_rows_that_come_are_held_until_they_are_many(little_memory: None) -> None:
    table = held().chunks
    assert isinstance(table, pd.DataFrame)
    rows = pa.Table.from_pandas(table, CHUNKS, preserve_index=False)
    received = Received(CHUNKS, on_disk.HELD)
    received.add(rows[:100])
    assert received.all().equals(rows[:100])
    for begin in range(100, len(rows), 70):
        received.add(rows[begin : begin + 70])
    found = received.all()
    assert isinstance(found, LongTable) and len(found) == len(rows)
    assert pq.read_table(found.file).equals(rows)


values = st.one_of(st.floats(-10, 10), st.sampled_from([1.0, 2.0, 2.0000000000000004]))


@given(
    st.lists(
        st.tuples(st.integers(1, 3 * STRIDE), st.integers(0, 2**32), values, st.booleans()),
        min_size=1,
        max_size=5,
    ),
    st.booleans(),
)
def test_a_place_is_found_in_parts_as_in_all(
    sizes: list[tuple[int, int, float, bool]], unbiased: bool
) -> None:
    parts = []
    for size, seed, often, weighted in sizes:
        rng = np.random.default_rng(seed)
        drawn = np.where(rng.random(size) < 0.5, often, rng.lognormal(0, 1, size))
        parts.append((drawn, rng.integers(1, 5, size) if weighted else None))
    every = np.concatenate([drawn for drawn, _ in parts])
    weights = np.concatenate([np.ones(len(drawn), int) if each is None else each for drawn, each in parts])
    a, b = Ordered.of_parts(parts), Ordered.of(every, weights)
    assert (a.n, a.weighted) == (b.n, b.weighted)
    ranks = [1, a.n, *(1 + np.arange(0, a.n, 97))]
    assert a.at_ranks(ranks) == b.at_ranks(ranks)
    qs = [0, 50, 90, 99, 99.9, 100]
    assert np.array_equal(a.percentiles(qs, unbiased=unbiased), b.percentiles(qs, unbiased=unbiased))


def test_a_full_disk_is_said(little_memory: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("wb", buffering=0) as full:
        monkeypatch.setattr(on_disk, "temporary_file", lambda: full)
        with pytest.raises(BenchError, match="No space left") as caught:
            on_disk.OnDisk(np.float64).append(np.ones(100_000))
    assert "TMPDIR" in caught.value.hint
