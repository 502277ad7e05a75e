"""Trace files: text of any size, gzip packed or not, with its digest and its kind by the first line."""

from __future__ import annotations

import gzip
import hashlib
import io
import stat
import zlib
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Literal

import msgspec

from harness.errors import UsageError
from harness.plain_text import one_line

_BOM = b"\xef\xbb\xbf"
_SNIFF = 65_536
#: Bytes of a line before the requests.
MAX_LINE = 1 << 20
#: Characters of a comment, which is shown in reports.
MAX_COMMENT = 1_000


@dataclass(frozen=True)
class Source:
    """A trace file. `comments` are its leading `# key: value` lines; `body` is the rest.

    `fields` are the column names of a CSV header or the keys of the first JSON object, and `first_line` is
    the number, from 1, of the line on which `body` starts. `sha256` is of the file, compressed or not.
    `whole` says that `body` has all requests of the file, else those at its head.
    """

    path: Path
    sha256: str
    kind: Literal["csv", "jsonl"]
    fields: tuple[str, ...]
    comments: dict[str, str]
    body: bytes
    first_line: int
    whole: bool = True

    @classmethod
    def open(cls, path: Path, rows: int | None = None) -> Source:
        """Read a file, which may be packed with gzip.

        Args:
            rows: Keep no more of the requests than these, from the file's head. None: all.

        Raises:
            UsageError: It cannot be read, is empty, is too large, or is not UTF-8 text.
        """
        try:
            text, digest = _open(path)
            with text:
                line = text.readline(MAX_LINE).removeprefix(_BOM)
                comments: dict[str, str] = {}
                number = 1
                while line.startswith(b"#"):
                    key, _, value = _decode(path, number, line[1:]).partition(":")
                    comments[key.strip()] = one_line(value, MAX_COMMENT)
                    line = text.readline(MAX_LINE)
                    number += 1
                kind: Literal["csv", "jsonl"] = "jsonl" if line.startswith(b"{") else "csv"
                rest, whole = read_lines(path, text, None if rows is None else rows - (kind == "jsonl"))
        except IsADirectoryError:
            raise UsageError(f"{path} is a folder", "give the trace file in it") from None
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            reason = f"{path} is not a complete gzip file: {error}"
            raise UsageError(reason, "download or pack it again") from None
        except OSError as error:
            reason = f"{path} cannot be read: {error.strerror}"
            raise UsageError(reason, "check the path and its permissions") from None
        body = (line + rest).rstrip()
        if not body:
            raise UsageError(f"{path} is empty", "give a trace file with at least one request")
        if b"\0" in body[:_SNIFF]:
            raise UsageError(f"{path} is a binary file", "give a CSV or JSONL trace, gzip packed or not")
        fields = _fields(path, number, _decode(path, number, body.split(b"\n", 1)[0]), kind)
        return cls(path, digest, kind, fields, comments, body, number, whole)

    def error(self, line: int, what: str) -> UsageError:
        """Return an error about one line of this file, numbered from 1."""
        return UsageError(f"{self.path}, line {line}: {what}", "correct the line, or remove it")


def _decode(path: Path, line: int, text: bytes) -> str:
    try:
        return text.decode().strip()
    except UnicodeDecodeError:
        raise UsageError(f"{path}, line {line}: not UTF-8 text", "give a CSV or JSONL trace") from None


def _fields(path: Path, line: int, head: str, kind: Literal["csv", "jsonl"]) -> tuple[str, ...]:
    if kind == "csv":
        return tuple(name.strip().strip('"') for name in head.split(","))
    try:
        return tuple(msgspec.json.decode(head, type=dict[str, object]))
    except msgspec.DecodeError as error:
        raise UsageError(
            f"{path}, line {line}: not a JSON object: {error}", "write one request on each line, as JSON"
        ) from None


_GZIP = b"\x1f\x8b"
_CHUNK = 1 << 20
#: Bytes of requests, unpacked: 100 million rows of the largest public trace.
MAX_BYTES = 4 << 30


def _open(path: Path) -> tuple[IO[bytes], str]:
    """Open a file's text, unpacked if it is packed with gzip, and return it with the sha256 of the file.

    The file is no device, but maybe a pipe, which can be read once.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISDIR(mode)):
        raise UsageError(f"{path} is not a file", "give a file, or a pipe")
    file: IO[bytes] = io.BytesIO(path.read_bytes()) if stat.S_ISFIFO(mode) else path.open("rb")
    digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    file.seek(0)
    packed = file.read(len(_GZIP)) == _GZIP
    file.seek(0)
    return (gzip.open(file) if packed else file), digest  # type: ignore[return-value]


def read_lines(path: Path, text: IO[bytes], count: int | None) -> tuple[bytes, bool]:
    """Return the next `count` lines, None: all; and whether nothing but blanks comes after them."""
    read = partial(text.read, _CHUNK) if count is None else partial(text.readline, MAX_BYTES + 1)
    pieces: list[bytes] = []
    size = 0
    for piece in islice(iter(read, b""), count):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_BYTES:
            raise UsageError(
                f"{path} holds over {MAX_BYTES >> 30} GiB of text", "give the part of it to be sent"
            )
    return b"".join(pieces), not text.read(_CHUNK).strip()
