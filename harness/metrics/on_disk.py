"""Numbers that are too many to be held in memory: they are in a temporary file, and read part by part."""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from harness.errors import BenchError

#: Rows of a table of chunks up to which it is held in memory: 150 bytes each, with what is made of it.
HELD = 1 << 20
#: The same of a table of requests, with 1,500 bytes each.
HELD_REQUESTS = 1 << 17
#: Rows of a longer one that are in memory at a time.
PART = 1 << 18


class OnDisk:
    """(n,) numbers of one type. Their file has no name, and ends with this object or with the process."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self.dtype = np.dtype(dtype)
        self.size = 0
        self._file = temporary_file()

    def append(self, values: npt.NDArray[np.number]) -> None:
        """Add numbers at the end. Raises BenchError where the disk is full."""
        try:
            self._file.write(np.ascontiguousarray(values, self.dtype).view(np.uint8).data)
            self._file.flush()
        except OSError as error:
            raise disk_is_full(error) from error
        self.size += values.size

    def mapped(self) -> npt.NDArray[Any]:
        """All of them, as of `array`; no more will come."""
        size = self.size * self.dtype.itemsize
        held = mmap.mmap(self._file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
        return np.frombuffer(held, self.dtype)

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        """Some of the numbers, not to be written to."""
        first, last, _ = rows.indices(self.size)
        width = self.dtype.itemsize
        return np.frombuffer(os.pread(self._file.fileno(), (last - first) * width, first * width), self.dtype)


def array(size: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """(size,) numbers of requests, to be written. Those that are too many to be held are a mapped file, whose
    pages the kernel writes and reads: they take memory only while nobody else needs it. The file has no name,
    and ends with the array. Raises BenchError where the disk is full."""
    if size <= HELD_REQUESTS or np.dtype(dtype).hasobject:
        return np.empty(size, dtype)
    with temporary_file() as file:
        bytes_ = size * np.dtype(dtype).itemsize
        try:
            os.posix_fallocate(file.fileno(), 0, bytes_)
            return np.frombuffer(mmap.mmap(file.fileno(), bytes_), dtype)
        except OSError as error:
            raise disk_is_full(error) from error


def temporary_file() -> IO[bytes]:
    """A file without a name: where `TMPDIR` says, else on a disk, which `/tmp` often is not."""
    disk = Path("/var/tmp")
    return tempfile.TemporaryFile(dir=disk if "TMPDIR" not in os.environ and disk.is_dir() else None)


def disk_is_full(error: OSError) -> BenchError:
    """What to say where a temporary file cannot be written."""
    return BenchError(
        f"a temporary file cannot be written: {error.strerror}",
        "set the environment variable TMPDIR to a folder on a disk with space: 60 bytes for each chunk",
    )
