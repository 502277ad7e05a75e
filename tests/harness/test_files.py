"""A file is written whole or not at all, and nothing but a file is replaced."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from harness.cli.faults import refused
from harness.errors import UsageError
from harness.files import whole_file, write_whole


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "deeper" / "file"
    write_whole(path, b"one")
    write_whole(path, b"two")
    assert path.read_bytes() == b"two" and list(path.parent.iterdir()) == [path]


def test_what_fails_within_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")
    with pytest.raises(ValueError, match="no"), whole_file(path) as partial:
        partial.write_bytes(b"half")
        raise ValueError("no")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("limit", "value", "hint"),
    [(resource.RLIMIT_FSIZE, 2, "free some space"), (resource.RLIMIT_NOFILE, 0, "ulimit -n")],
)
def test_a_limit_of_the_system_leaves_the_old_file(tmp_path: Path, limit: int, value: int, hint: str) -> None:
    """The error has a hint, and names the file."""
    path = tmp_path / "file"
    write_whole(path, b"old")
    soft, hard = resource.getrlimit(limit)
    resource.setrlimit(limit, (value, hard))
    try:
        with pytest.raises(OSError, match="file") as raised:
            write_whole(path, b"newer")
    finally:
        resource.setrlimit(limit, (soft, hard))
    error = refused(raised.value)
    assert error is not None and hint in (error.hint or "")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["folder", "pipe", "link to a device", "link to a folder"])
def test_only_files_are_replaced(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "target"
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "link to a device":
            path.symlink_to("/dev/null")
        case _:
            path.symlink_to(tmp_path)
    before = path.lstat()
    with pytest.raises(UsageError, match="which is never replaced"):
        write_whole(path, b"data")
    assert (path.lstat().st_mode, path.lstat().st_ino) == (before.st_mode, before.st_ino)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("place", ["/proc/foo.html", "/proc/no/foo", "/dev/null/foo", "x" * 300])
def test_where_nothing_can_be_made(tmp_path: Path, place: str) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        write_whole(tmp_path / place, b"data")
