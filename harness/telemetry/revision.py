"""Revision of the project that is running."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from hashlib import sha256
from math import inf
from pathlib import Path

from pydantic import JsonValue

PACKAGES = ("harness", "roseinfer", "rosemodels")
#: What can change a measurement: a report or a page of the documentation cannot.
MEASURED = (*PACKAGES, "configs", "datasets", "traces", "pyproject.toml")
#: The folder that holds the packages: the checkout, or site-packages.
ROOT = Path(__file__).resolve().parents[2]
#: At the end of a revision with changes in MEASURED that were not committed.
DIRTY = "-dirty"


def _git(root: Path, *arguments: str) -> str | None:
    """Return git's output; None without git, or outside a checkout."""
    try:
        process = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip()


def git_revision(root: Path = ROOT) -> str | None:
    """The commit of the project's checkout at `root`, with DIRTY when tracked files of MEASURED differ; None
    if none is there."""
    if _git(root, "rev-parse", "--show-toplevel") != str(root):
        return None
    commit = _git(root, "rev-parse", "HEAD")
    return commit and commit + DIRTY * bool(_git(root, "status", "--porcelain", "-uno", "--", *MEASURED))


def source_hash(root: Path = ROOT) -> str:
    """SHA-256 of names and contents of the packages' files in `root`, 16 digits: what runs, whatever git
    knows.

    The same in a checkout and installed from a wheel of it.
    """
    return files_hash(sorted(_files(root)))


def files_hash(files: Iterable[tuple[str, Path]], large: float = inf) -> str:
    """SHA-256 of names and contents in this order, 16 digits; for files of more than `large` bytes, of their
    sizes."""
    digest = sha256()
    for name, path in files:
        size = path.stat().st_size
        content = size if size > large else sha256(path.read_bytes()).hexdigest()
        digest.update(f"{name} {content}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    """Every file of the packages and its name below `root`."""
    for package in PACKAGES:
        for folder, below, files in os.walk(root / package, followlinks=True):
            if "__pycache__" in below:
                below.remove("__pycache__")
            for file in files:
                path = Path(folder, file)
                yield path.relative_to(root).as_posix(), path


def describe(root: Path = ROOT) -> dict[str, JsonValue] | None:
    """Commit and whether tracked files of MEASURED differ from it; None outside a checkout."""
    if (revision := git_revision(root)) is None:
        return None
    return {"revision": revision.removesuffix(DIRTY), "dirty": revision.endswith(DIRTY)}
