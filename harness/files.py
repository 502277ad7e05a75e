"""Atomic files: a reader sees the whole file or none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def write_whole(path: Path, data: bytes | memoryview) -> None:
    """Write a temporary file next to `path`, sync it, rename it. Missing folders are created.

    Raises OSError; the temporary file is then removed.
    """
    with whole_file(path) as partial:
        partial.write_bytes(data)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path to write to: after the `with` synced and renamed to `path`, after an error removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that names created or renamed in it survive a power cut."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
