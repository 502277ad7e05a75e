"""Files of a profile: their names, size limit and hashes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from harness.errors import EngineError
from harness.profiling.artifacts import collect, name_torch_traces, remove_oversized


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
