"""Parts of a node, and folders that nodes share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cluster.node_facts import Part
from harness.cluster.shared_folder import SharedFolder
from harness.errors import BenchError


@given(st.integers(1, 64), st.integers(1, 8))
def test_parts_of_a_node_have_as_many_cores_each_and_none_in_common(count: int, of: int) -> None:
    cores = [(core, core + count) for core in range(count)]
    parts = [Part(number, of).cores(cores) for number in range(of)]
    if count < of:
        assert parts == [cores] * of
    else:
        assert {len(part) for part in parts} == {count // of}
        assert len({core for part in parts for core in part}) == sum(map(len, parts))


@pytest.mark.parametrize("url", ["file://{}", "{}"])
def test_what_is_shared_is_taken_once_and_nothing_is_left(url: str, tmp_path: Path) -> None:
    folder, other = (SharedFolder.below(url.format(tmp_path)) for _ in range(2))
    first, second = folder.put(b"a" * 10_000), folder.put(b"")
    assert (folder.take(second), folder.take(first)) == (b"", b"a" * 10_000)
    with pytest.raises(BenchError, match=r"the shared folder .* cannot be used"):
        folder.take(first)
    folder.put(b"left")
    folder.remove()
    other.remove()
    assert not any(tmp_path.iterdir())


def test_a_shared_folder_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for url in (f"{tmp_path}/file/below", "nosuchkind://bucket"):
        with pytest.raises(BenchError, match="cannot be used") as caught:
            SharedFolder.below(url).put(b"")
        assert "--share" in caught.value.hint
