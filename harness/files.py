"""Atomic files: a reader sees the whole file or none. One lock on a folder, one present moment."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel

from harness.errors import UsageError
from harness.plain_text import visible

_KINDS = {
    stat.S_ISDIR: "a folder",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
    stat.S_ISFIFO: "a named pipe",
    stat.S_ISSOCK: "a socket",
    stat.S_ISLNK: "a link",
}


def write_whole(path: Path, data: bytes | memoryview) -> None:
    """Write a temporary file next to `path`, sync it, rename it. Missing folders are created.

    Raises:
        UsageError: `path` is there and is no file, or nothing can be made where it should be.
        OSError: It cannot be written whole; the temporary file is then removed.
    """
    with whole_file(path) as partial:
        partial.write_bytes(data)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path to write to: after the `with` synced and renamed to `path`, after an error removed.

    Raises UsageError and OSError as `write_whole`.
    """
    with naming(path):
        partial = _begin(path)
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


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An OSError inside that names no file names this one: where a disk is full, none is named."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def check_writable(path: Path) -> None:
    """Raise UsageError if `write_whole` would at once, so that nobody waits for what cannot be kept."""
    _begin(path).unlink()


def _begin(path: Path) -> Path:
    """The temporary file of `path`, empty. Raises UsageError and OSError as `write_whole`."""
    with suppress(OSError):
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise UsageError(f"{path} is {_kind(mode)}, which is never replaced", "name a file")
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.touch()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE):
            raise
        why = os.strerror(error.errno or 0)
        raise UsageError(f"{path} cannot be written: {why}", "choose another place") from None
    return partial


def _kind(mode: int) -> str:
    return next((name for is_kind, name in _KINDS.items() if is_kind(mode)), "no file")


def check_contents(folder: Path) -> None:
    """Raise UsageError where a folder from elsewhere holds anything but files and folders.

    A pipe or a device keeps its reader for ever; a link has a file elsewhere read or written.
    """
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # it is just being replaced
            mode = path.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise UsageError(f"{path} is {_kind(mode)}, not a file", "remove it, if you trust the rest")


def sha256(path: Path) -> str:
    """The digest of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_limited(path: Path, limit: int) -> bytes:
    """Return the content of a file. Raises OSError, and UsageError where it has over `limit` bytes."""
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise UsageError(f"{path} holds over {limit >> 20} MiB", "give a smaller file")
    return content


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that names created or renamed in it survive a power cut."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_json(path: Path, content: BaseModel) -> None:
    """Strict JSON, whole or not at all; a terminal can show it."""
    write_whole(path, visible(content.model_dump_json(indent=2)).encode() + b"\n")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """No other process is inside `locked` for the same folder.

    flock(2) on the folder itself: nothing is left in it, and the lock goes with the process, however it ends.
    filelock keeps a file of its own next to what it locks, which every copy of a run would carry.

    Raises:
        BlockingIOError: Another process is.
        OSError: There is no such folder.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def now() -> str:
    """The present moment as result files have it: ISO 8601, UTC, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")
