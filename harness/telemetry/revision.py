"""Which revision of the project is running."""

from __future__ import annotations

import subprocess
from hashlib import sha256

from pydantic import JsonValue

from harness import PROJECT_ROOT

PACKAGES = ("harness", "roseinfer", "rosemodels")


def _git(*arguments: str) -> str | None:
    """What git prints; None without git, outside a checkout, or in somebody else's."""
    try:
        done = subprocess.run(
            ["git", "-C", str(PROJECT_ROOT), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def git_revision() -> str | None:
    """The commit of the project's checkout, with `-dirty` when tracked files differ; None outside one."""
    if _git("rev-parse", "--show-toplevel") != str(PROJECT_ROOT):
        return None
    commit = _git("rev-parse", "HEAD")
    return f"{commit}-dirty" if commit and _git("status", "--porcelain", "-uno") else commit


def source_hash() -> str:
    """SHA-256 of names and contents of the packages' files, 16 digits: what runs, whatever git knows."""
    digest = sha256()
    files = (path for package in PACKAGES for path in (PROJECT_ROOT / package).rglob("*") if path.is_file())
    for path in sorted(files):
        if "__pycache__" not in path.parts:
            content = sha256(path.read_bytes()).hexdigest()
            digest.update(f"{path.relative_to(PROJECT_ROOT).as_posix()} {content}\n".encode())
    return digest.hexdigest()[:16]


def describe() -> dict[str, JsonValue] | None:
    """Commit and whether tracked files differ from it; None outside a checkout."""
    revision = git_revision()
    if revision is None:
        return None
    return {"revision": revision.removesuffix("-dirty"), "dirty": revision.endswith("-dirty")}
