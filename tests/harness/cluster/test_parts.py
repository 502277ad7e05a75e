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
    for url in (f"{tmp_path}/file/below", f"{tmp_path}/absent", "nosuchkind://bucket"):
        with pytest.raises(BenchError, match="cannot be used") as caught:
            SharedFolder.below(url).put(b"")
        assert "--share" in caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.cluster
def test_a_bucket_is_shared_and_none_is_made(integration: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a server that has the interface of S3: `pip install s3fs 'moto[server]'`."""
    s3fs, moto = pytest.importorskip("s3fs"), pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    files = s3fs.S3FileSystem()
    files.mkdir("bench")
    for url in ("s3://bench", "s3://bench/folder"):
        folder = SharedFolder.below(url)
        assert folder.take(folder.put(b"a" * 10_000)) == b"a" * 10_000
        folder.put(b"left")
        folder.remove()
    files.invalidate_cache()
    assert not files.find("bench")
    with pytest.raises(BenchError, match="does not exist"):
        SharedFolder.below("s3://another/folder").put(b"")
    assert files.ls("") == ["bench"]
    server.stop()
