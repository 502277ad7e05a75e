"""A trace file: its bytes, its digest, and its kind by its first line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from harness.errors import UsageError
from harness.plain_text import one_line
from harness.traces.text_file import HashedFile, read_lines, translated

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

        Raises UsageError if it cannot be read, is empty, is too large, or is not UTF-8 text.
        """
        hashed = HashedFile(path)
        with hashed, translated(path):
            text = hashed.text()
            line = text.readline(MAX_LINE).removeprefix(_BOM)
            comments: dict[str, str] = {}
            number = 1
            while line.startswith(b"#"):
                key, _, value = _decode(path, number, line[1:]).partition(":")
                comments[key.strip()] = one_line(value, MAX_COMMENT)
                line = text.readline(MAX_LINE)
                number += 1
            kind: Literal["csv", "jsonl"] = "jsonl" if line.startswith(b"{") else "csv"
            wanted = None if rows is None else rows - (kind == "jsonl")
            rest, whole = read_lines(path, text, wanted)
            body = (line + rest).rstrip()
            hashed.drain()
        if not body:
            raise UsageError(f"{path} is empty", "give a trace file with at least one request")
        if b"\0" in body[:_SNIFF]:
            raise UsageError(f"{path} is a binary file", "give a CSV or JSONL trace, gzip packed or not")
        fields = _fields(path, number, _decode(path, number, body.split(b"\n", 1)[0]), kind)
        return cls(path, hashed.digest, kind, fields, comments, body, number, whole)

    def error(self, line: int, what: str) -> UsageError:
        """An error about one line of this file, numbered from 1."""
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
