"""The public traces by name: `traces/catalog.yaml`, and where their files are searched."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Self

import yaml
from pydantic import Field, TypeAdapter, model_validator

from harness import paths
from harness.did_you_mean import did_you_mean
from harness.errors import UsageError
from harness.schema.base import Strict
from harness.traces import builtin, readers
from harness.traces.source import Source
from harness.traces.trace import Trace

GITHUB = "https://github.com"
CATALOG = paths.DATA / "traces" / "catalog.yaml"
CACHE = paths.CACHE / "traces"
#: Requests that are read of a trace at first, where not all are needed.
FIRST_ROWS = 10_000
#: Files of up to so many bytes are read whole: one may be out of order anywhere.
WHOLE_BYTES = 16 << 20


class Place(Strict):
    """Where a file is published: a GitHub repository at a commit or branch, or an asset of a release."""

    repository: str
    path: str
    ref: str | None = Field(None, description="commit, tag or branch that holds `path`")
    release: str | None = Field(None, description="tag of the release whose asset `path` is")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.ref is None) == (self.release is None):
            raise ValueError("a place has either a ref or a release")
        return self

    @property
    def url(self) -> str:
        """The address of the bytes. GitHub redirects it to its own storage, Git LFS objects included."""
        where = f"releases/download/{self.release}" if self.release else f"raw/{self.ref}"
        return f"{GITHUB}/{self.repository}/{where}/{self.path}"

    def __str__(self) -> str:
        where = f"release {self.release}" if self.release else self.ref
        return f"github.com/{self.repository} ({where}), {self.path}"


class Excerpt(Strict):
    """The header and consecutive rows of another trace of the catalog."""

    trace: str
    rows: tuple[int, int] = Field(description="first and last row, from 0")


class Entry(Strict):
    """A public trace."""

    name: str
    file: str
    format: str
    place: Place
    excerpt: Excerpt | None = None
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    bytes: int | None = None
    licence: str
    citation: str
    note: str | None = None

    @property
    def origin(self) -> str:
        rows = f", rows {self.excerpt.rows[0]} to {self.excerpt.rows[1]}" if self.excerpt else ""
        return f"{self.place}{rows}"


@cache
def entries() -> dict[str, Entry]:
    """Every public trace of the catalog by its name."""
    listed = TypeAdapter(list[Entry]).validate_python(yaml.safe_load(CATALOG.read_text()))
    return {entry.name: entry for entry in listed}


def entry(name: str) -> Entry:
    """A public trace. Raises UsageError, with the closest names, for one that is not in the catalog."""
    if name in entries():
        return entries()[name]
    meant = did_you_mean(name, [builtin.NAME, *entries()], most=3)
    raise UsageError(f"there is no trace or file {name!r}", f"{meant}`bench traces list` lists all traces")


def load(name: str | Path, enough: Callable[[Trace], bool] | None = None) -> Trace:
    """The trace of that name, or in that file.

    Args:
        enough: Whether a trace of the file's first requests will do; no more are read then, as long as these
            are in order of arrival. None: all are read.

    Raises UsageError if there is none, if the file is malformed, or if it is not the published one.
    """
    if name == builtin.NAME:
        return builtin.builtin()
    trace = _read(file_of(name), enough)
    if str(name) in entries():
        return _attribute(trace, entries()[str(name)])
    published = next((it for it in entries().values() if it.sha256 == trace.sha256), None)
    return _attribute(trace, published) if published else trace


def _read(path: Path, enough: Callable[[Trace], bool] | None) -> Trace:
    long = path.is_file() and path.stat().st_size > WHOLE_BYTES
    rows = FIRST_ROWS if enough is not None and long else None
    while True:
        source = Source.open(path, rows)
        trace = readers.read(source)
        if source.whole or rows is None or (enough is not None and trace.in_order and enough(trace)):
            return trace
        rows = rows * 8 if trace.in_order else None


def file_of(name: str | Path) -> Path:
    """The path of the public trace of that name, or the file itself.

    Raises UsageError if there is none, or if it is not the published one.
    """
    if str(name) in entries():
        return find(entries()[str(name)])
    path = Path(name).expanduser()
    if not path.exists():
        entry(str(name))
    return path


def find(entry: Entry) -> Path:
    """The local copy of a public trace: in a folder of `BENCH_TRACES` or in the cache, there or one folder
    deeper.

    Raises UsageError if there is none, or if its digest is not the published one.
    """
    copies = list(_copies(entry.file))
    if not copies:
        raise UsageError(
            f"trace {entry.name} is not on this machine ({entry.file})",
            f"run `bench traces fetch {entry.name}`, or set BENCH_TRACES to its folder",
        )
    if entry.sha256 is None:
        return copies[0]
    actual = ""
    for copy in copies:
        actual = digest(copy)
        if actual == entry.sha256:
            return copy
    raise UsageError(
        f"{copies[-1]} is not the published trace {entry.name}: sha256 {actual}, expected {entry.sha256}",
        f"run `bench traces fetch {entry.name}`, or give the file's path to use this file",
    )


def is_here(entry: Entry) -> bool:
    """Whether a file of that name exists; `find` checks its content."""
    return next(_copies(entry.file), None) is not None


def digest(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _copies(file: str) -> Iterator[Path]:
    searched = [Path(folder) for folder in os.environ.get("BENCH_TRACES", "").split(os.pathsep) if folder]
    for folder in (*searched, CACHE):
        for candidate in (folder / file, *sorted(folder.glob(f"*/{file}"))):
            if candidate.is_file():
                yield candidate


def _attribute(trace: Trace, entry: Entry) -> Trace:
    return replace(
        trace,
        name=entry.name,
        origin=entry.origin,
        licence=entry.licence,
        citation=entry.citation,
        note="; ".join(note for note in (entry.note, trace.note) if note) or None,
    )
