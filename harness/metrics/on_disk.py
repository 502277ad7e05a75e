"""Numbers that are too many to be held in memory: they are in a temporary file, and read part by part."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from harness.errors import BenchError

#: Rows of a table of chunks up to which it is held in memory: 150 bytes each, with what is made of it.
HELD = 1 << 20
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

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        """Some of the numbers, not to be written to."""
        first, last, _ = rows.indices(self.size)
        width = self.dtype.itemsize
        return np.frombuffer(os.pread(self._file.fileno(), (last - first) * width, first * width), self.dtype)


def temporary_file() -> IO[bytes]:
    """A file without a name: where `TMPDIR` says, else on a disk, which `/tmp` often is not."""
    disk = Path("/var/tmp")
    return tempfile.TemporaryFile(dir=disk if "TMPDIR" not in os.environ and disk.is_dir() else None)


def disk_is_full(error: OSError) -> BenchError:
    """What to say where a temporary file cannot be written."""
    return BenchError(
        f"a temporary file cannot be written: {error.strerror}",
        "name a folder on a disk with space by the environment variable TMPDIR: 60 bytes for each chunk",
    )
