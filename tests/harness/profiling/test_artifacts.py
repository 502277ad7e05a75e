"""Files of a profile: their names, size limit and hashes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from harness.errors import EngineError
from harness.profiling.artifacts import collect, name_torch_traces, remove_oversized, torch_traces


def test_the_largest_trace_is_that_of_the_model(tmp_path: Path) -> None:
    folder = tmp_path / "profiles"
    (folder / "inner").mkdir(parents=True)
    (folder / "frontend.json.gz").write_bytes(b"x" * 10)
    (folder / "inner" / "rank0.json.gz").write_bytes(b"x" * 20)
    name_torch_traces(folder)
    found = {artifact.path: artifact for artifact in collect(tmp_path, folder)}
    assert set(found) == {"profiles/frontend.json.gz", "profiles/trace.json.gz"}
    main = found["profiles/trace.json.gz"]
    assert (main.kind, main.bytes) == ("torch trace", 20)
    assert main.sha256 == hashlib.sha256(b"x" * 20).hexdigest()


@pytest.mark.parametrize(
    "names",
    [
        ["roseinfer-7.trace.json.gz", "roseinfer-7.rank1.trace.json.gz"],
        ["dp0_pp0_tp0_dcp0_ep0_rank0.17.pt.trace.json.gz", "dp0_pp0_tp1_dcp0_ep1_rank1.17.pt.trace.json.gz"],
        ["1795400264.1-TP-0.trace.json.gz", "1795400264.1-TP-1.trace.json.gz"],
        ["17-TP-0-DP-0.trace.json.gz", "17-TP-1-DP-0.trace.json.gz", "17-TP-0-DP-1.trace.json.gz"],
        ["rank0.json.gz", "rank1.json.gz"],
    ],
    ids=["roseinfer", "vLLM", "SGLang", "SGLang with replicas", "short"],
)
def test_each_rank_has_its_trace(names: list[str], tmp_path: Path) -> None:
    """Whichever is the largest; of several replicas the first."""
    for size, name in enumerate(names, start=1):
        (tmp_path / name).write_bytes(b"x" * size)
    name_torch_traces(tmp_path)
    found = torch_traces(tmp_path)
    assert {rank: path.stat().st_size for rank, path in found.items()} == {0: 1, 1: 2}
    assert [path.name for path in found.values()] == ["trace.json.gz", "trace.rank1.json.gz"]
    assert len(list(tmp_path.iterdir())) == len(names)


def test_no_trace_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "table.txt").touch()
    with pytest.raises(EngineError, match="no trace"):
        name_torch_traces(tmp_path)


def test_files_above_the_limit_are_removed(tmp_path: Path) -> None:
    for name, size in (("a.json", 100), ("b.json", 300), ("c.json", 200)):
        (tmp_path / name).write_bytes(b"x" * size)
    said = remove_oversized(tmp_path, 150)
    assert said is not None and "b.json" in said and "c.json" in said and "--max-mb" in said
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert remove_oversized(tmp_path, 150) is None
