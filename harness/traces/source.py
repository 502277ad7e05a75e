"""A trace file: its bytes, its digest, and its kind by its first line."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from harness.errors import UsageError

_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_SNIFF = 65_536


@dataclass(frozen=True)
class Source:
    """A trace file. `comments` are its leading `# key: value` lines; `body` is the rest.

    `fields` are the column names of a CSV header or the keys of the first JSON object, and `first_line` is
    the number, from 1, of the line on which `body` starts. `sha256` is of the file, compressed or not.
    """

    path: Path
    sha256: str
    kind: Literal["csv", "jsonl"]
    fields: tuple[str, ...]
    comments: dict[str, str]
    body: bytes
    first_line: int

    @classmethod
    def open(cls, path: Path) -> Source:
        """Read a file, which may be packed with gzip.

        Raises UsageError if it cannot be read, is empty, or is not UTF-8 text.
        """
        raw = _read(path)
        text = _unpack(path, raw).removeprefix(_BOM)
        comments: dict[str, str] = {}
        line = 1
        while text.startswith(b"#"):
            comment, _, text = text.partition(b"\n")
            key, _, value = _decode(path, line, comment[1:]).partition(":")
            comments[key.strip()] = value.strip()
            line += 1
        body = text.rstrip()
        if not body:
            raise UsageError(f"{path} is empty", "give a trace file with at least one request")
        if b"\0" in body[:_SNIFF]:
            raise UsageError(f"{path} is a binary file", "give a CSV or JSONL trace, gzip packed or not")
        head = _decode(path, line, body.split(b"\n", 1)[0])
        kind, fields = _describe(path, line, head)
        return cls(path, hashlib.sha256(raw).hexdigest(), kind, fields, comments, body, line)

    def error(self, line: int, what: str) -> UsageError:
        """An error about one line of this file, numbered from 1."""
        return UsageError(f"{self.path}, line {line}: {what}", "correct the line, or remove it")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder", "give the trace file in it") from None
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", "check the path and its permissions"
        ) from None


def _unpack(path: Path, raw: bytes) -> bytes:
    if not raw.startswith(_GZIP):
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(
            f"{path} is not a complete gzip file: {error}", "download or pack it again"
        ) from None


def _decode(path: Path, line: int, text: bytes) -> str:
    try:
        return text.decode().strip()
    except UnicodeDecodeError:
        raise UsageError(f"{path}, line {line}: not UTF-8 text", "give a CSV or JSONL trace") from None


def _describe(path: Path, line: int, head: str) -> tuple[Literal["csv", "jsonl"], tuple[str, ...]]:
    if not head.startswith("{"):
        return "csv", tuple(name.strip().strip('"') for name in head.split(","))
    try:
        return "jsonl", tuple(msgspec.json.decode(head, type=dict[str, object]))
    except msgspec.DecodeError as error:
        raise UsageError(
            f"{path}, line {line}: not a JSON object: {error}", "write one request on each line, as JSON"
        ) from None
