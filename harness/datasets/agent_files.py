"""Files with JSON lines of agents' jobs, compressed or not."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Protocol, TypeVar

import msgspec

from harness.errors import UsageError

Tokens = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Line = TypeVar("Line")


class Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...


def read_lines(path: Path, kind: type[Line], digest: Digest, hint: str) -> Iterator[Line]:
    """What each line of a file says, or of all files of a folder in the order of their names.

    Args:
        digest: Is updated with the bytes of the files as stored.

    Raises:
        UsageError: A file cannot be read, or a line is no such object.
    """
    decoder = msgspec.json.Decoder(kind)
    for file in sorted(path.glob("*.json*")) if path.is_dir() else [path]:
        try:
            raw = file.read_bytes()
            digest.update(raw)
            lines = gzip.GzipFile(fileobj=io.BytesIO(raw)) if file.suffix == ".gz" else io.BytesIO(raw)
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    try:
                        yield decoder.decode(line)
                    except (msgspec.DecodeError, UnicodeDecodeError) as error:
                        raise UsageError(f"{file}, line {number}: {error}", hint) from None
        except (OSError, EOFError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"{file} cannot be read: {reason}", hint) from None
