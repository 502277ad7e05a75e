"""The folder of a run."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from harness import PROJECT_ROOT
from harness.errors import UsageError
from harness.files import write_whole

DEFAULT = PROJECT_ROOT / "outputs" / "benchmarks" / "serving"


def now() -> str:
    """The present moment as it stands in result files."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def make_folder(parent: Path | None, kind: Literal["online", "offline"]) -> Path:
    """A new folder `<kind>_<local time>`, with a number behind it where that is taken.

    Raises:
        UsageError: The parent cannot be written to.
    """
    parent = parent or DEFAULT
    stamp = datetime.now().strftime("%Y%m%d_%H%M%S")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for number in range(1000):
            folder = parent / f"{kind}_{stamp}{f'_{number}' if number else ''}"
            try:
                folder.mkdir()
                return folder
            except FileExistsError:
                continue
    except OSError as error:
        raise UsageError(
            f"{parent} cannot be written to: {os.strerror(error.errno or 0)}", "choose another --out"
        ) from None
    raise UsageError(f"{parent} holds too many runs of this second", "choose another --out")


def write_json(path: Path, content: BaseModel) -> None:
    """Strict JSON, whole or not at all."""
    write_whole(path, content.model_dump_json(indent=2).encode() + b"\n")
