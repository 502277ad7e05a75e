"""Downloads a public trace from its official source into the cache, and checks its hash."""

from __future__ import annotations

import http.client
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from harness.errors import BenchError, UsageError
from harness.traces import builtin, catalog

Progress = Callable[[int, int | None], None]
_CHUNK = 1 << 20
_TIMEOUT_S = 30


def fetch(name: str, folder: Path | None = None, progress: Progress | None = None) -> Path:
    """Download the file of a public trace into `folder` (default: the cache) and return its path.

    The file is written atomically. A correct copy is not downloaded again. `progress` is called with the
    bytes so far and the size, None if unknown. Raises UsageError for an unknown name, BenchError without a
    network or if the download is not the published file."""
    if name == builtin.NAME:
        raise UsageError("the built-in trace needs no download", "use it with `--trace builtin`")
    entry = catalog.entry(name)
    folder = folder or catalog.CACHE
    target = folder / entry.file
    if target.is_file() and entry.sha256 in (None, catalog.digest(target)):
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot create {folder}: {error.strerror}", "check its permissions") from None
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
        partial = Path(scratch) / entry.file
        if entry.excerpt is None:
            _download(entry, partial, progress)
        else:
            _cut(fetch(entry.excerpt.trace, folder, progress), partial, entry.excerpt.rows)
        actual = catalog.digest(partial)
        if entry.sha256 not in (None, actual):
            raise BenchError(
                f"the download of {name} has sha256 {actual}, expected {entry.sha256}",
                f"download it again; if the error stays, {entry.place.url} has changed",
            )
        partial.replace(target)
    return target


def _download(entry: catalog.Entry, partial: Path, progress: Progress | None) -> None:
    url = entry.place.url
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response, partial.open("wb") as file:
            length = response.headers.get("Content-Length")
            done = 0
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(done, int(length) if length else entry.bytes)
            if length and done != int(length):
                raise http.client.IncompleteRead(b"", int(length) - done)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if type(error) is urllib.error.URLError else error
        raise BenchError(
            f"could not fetch {entry.name} from {url}: {reason}",
            f"check the network, or put {entry.file} into a folder named in BENCH_TRACES",
        ) from None


def _cut(whole: Path, partial: Path, rows: tuple[int, int]) -> None:
    """Copy the header of a CSV and its rows from the first to the last of `rows`, byte for byte."""
    with whole.open("rb") as source, partial.open("wb") as file:
        file.write(source.readline())
        for row, line in enumerate(source):
            if rows[0] <= row <= rows[1]:
                file.write(line)
        file.flush()
        os.fsync(file.fileno())
