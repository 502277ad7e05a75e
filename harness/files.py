"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def write_whole(path: Path, data: bytes | memoryview) -> None:
    """Write beside `path`, sync, rename; the folder is made where it is missing.

    Raises OSError, with nothing left beside `path`.
    """
    with whole_file(path) as partial:
        partial.write_bytes(data)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; behind the `with` it is synced and renamed, after an error gone."""
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
    """Make names created or renamed in `folder` survive a power cut."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
