"""A text file of any size, gzip packed or not: its lines, its digest, and a bound on what is kept of it."""

from __future__ import annotations

import gzip
import hashlib
import io
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from harness.errors import UsageError

_GZIP = b"\x1f\x8b"
_CHUNK = 1 << 20
#: Bytes of requests, unpacked: 100 million rows of the largest public trace.
MAX_BYTES = 4 << 30


class HashedFile(io.RawIOBase):
    """A file that is read once, from its beginning, and hashed meanwhile: no device, but maybe a pipe."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        with translated(path):
            mode = path.stat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISDIR(mode)):
                raise UsageError(f"{path} is not a file", "give a file, or a pipe")
            self._file = path.open("rb", buffering=0)
        self._hash = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """As io.RawIOBase has it."""
        count = self._file.readinto(buffer) or 0
        self._hash.update(memoryview(buffer)[:count])
        return count

    def text(self) -> IO[bytes]:
        """Its bytes, unpacked where it is packed with gzip."""
        packed = io.BufferedReader(self, _CHUNK)
        return gzip.open(packed) if packed.peek(2)[:2] == _GZIP else packed  # type: ignore[return-value]

    def drain(self) -> None:
        """Read what is left, for the digest."""
        buffer = bytearray(_CHUNK)
        while self.readinto(buffer):
            pass

    @property
    def digest(self) -> str:
        """The sha256 of what was read, in hexadecimal."""
        return self._hash.hexdigest()

    def close(self) -> None:
        self._file.close()
        super().close()


def read_lines(path: Path, text: IO[bytes], count: int | None) -> tuple[bytes, bool]:
    """The next `count` lines, None: all; and whether nothing but blanks comes after them."""
    chunks: list[bytes] = []
    size = lines = 0
    while chunk := text.read(_CHUNK):
        size += len(chunk)
        if size > MAX_BYTES:
            raise UsageError(
                f"{path} holds over {MAX_BYTES >> 30} GiB of text", "give the part of it to be sent"
            )
        if count is None:
            chunks.append(chunk)
            continue
        if lines + chunk.count(b"\n") < count:
            lines += chunk.count(b"\n")
            chunks.append(chunk)
            continue
        end = -1
        while lines < count:
            end = chunk.index(b"\n", end + 1)
            lines += 1
        chunks.append(chunk[: end + 1])
        after = chunk[end + 1 :].strip() or text.read(_CHUNK).strip()
        return b"".join(chunks), not after
    return b"".join(chunks), True


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Errors of reading as a UsageError."""
    try:
        yield
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder", "give the trace file in it") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UsageError(
            f"{path} is not a complete gzip file: {error}", "download or pack it again"
        ) from None
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", "check the path and its permissions"
        ) from None
