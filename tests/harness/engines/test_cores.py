"""Client and engine never share a physical core."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from harness.engines.placement import MIN_CORES, CpuSplit, physical_cores, split

machines = st.tuples(st.integers(1, 128), st.integers(1, 4)).map(
    lambda shape: [tuple(core + shape[0] * thread for thread in range(shape[1])) for core in range(shape[0])]
)


@given(machines)
def test_every_core_goes_whole_to_one_side(cores):
    both = split(cores)
    if len(cores) < MIN_CORES:
        assert both == CpuSplit(None, None)
        return
    client, engine = set(both.client), set(both.engine)
    assert client and not client & engine
    assert client | engine == {cpu for core in cores for cpu in core}
    assert all(client.issuperset(core) or client.isdisjoint(core) for core in cores)
    assert 3 * len(client) <= len(engine)


def test_siblings_are_grouped(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    for cpu in range(4):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 2},{cpu % 2 + 2}\n")
    assert physical_cores(tmp_path) == [(0, 2), (1, 3)]
