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


def _git(*arguments: str) -> str | None:
    """Return git's output; None without git, or outside a checkout."""
    try:
        process = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip()


def git_revision() -> str | None:
    """The commit of the project's checkout, with DIRTY when tracked files of MEASURED differ; None outside
    one."""
    if _git("rev-parse", "--show-toplevel") != str(ROOT):
        return None
    commit = _git("rev-parse", "HEAD")
    return f"{commit}{DIRTY}" if commit and _git("status", "--porcelain", "-uno", "--", *MEASURED) else commit


def source_hash() -> str:
    """SHA-256 of names and contents of the packages' files, 16 digits: what runs, whatever git knows.

    The same in a checkout and installed from a wheel of it.
    """
    return files_hash(sorted(_files()))


def files_hash(files: Iterable[tuple[str, Path]], large: float = inf) -> str:
    """SHA-256 of names and contents in this order, 16 digits; for files of more than `large` bytes, of their
    sizes."""
    digest = sha256()
    for name, path in files:
        size = path.stat().st_size
        content = size if size > large else sha256(path.read_bytes()).hexdigest()
        digest.update(f"{name} {content}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


def _files() -> Iterator[tuple[str, Path]]:
    """Every file of the packages and its name below ROOT."""
    for package in PACKAGES:
        for folder, below, files in os.walk(ROOT / package, followlinks=True):
            if "__pycache__" in below:
                below.remove("__pycache__")
            for file in files:
                path = Path(folder, file)
                yield path.relative_to(ROOT).as_posix(), path


def describe() -> dict[str, JsonValue] | None:
    """Commit and whether tracked files of MEASURED differ from it; None outside a checkout."""
    revision = git_revision()
    if revision is None:
        return None
    return {"revision": revision.removesuffix(DIRTY), "dirty": revision.endswith(DIRTY)}
