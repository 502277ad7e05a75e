"""The folder of a run."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from harness.errors import UsageError
from harness.files import write_whole
from harness.schema.results import RUN_INFO, RunInfo
from harness.schema.stored import read_of_run

RUN = "run.json"
DEFAULT = Path("outputs/benchmarks/serving")


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


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Nobody else may go on with the run in `folder` inside.

    Raises:
        UsageError: Somebody does, or there is no such folder.
    """
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UsageError(
            f"{folder} holds no run: {os.strerror(error.errno or 0)}", "name the folder of a run"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise UsageError(f"the run in {folder} is still going on", "wait for its end") from None
    try:
        yield
    finally:
        os.close(lock)


def write_json(path: Path, content: BaseModel) -> None:
    """Strict JSON, whole or not at all."""
    write_whole(path, content.model_dump_json(indent=2).encode() + b"\n")


def read_info(folder: Path, hint: str) -> RunInfo:
    """What stands in a run's `run.json`.

    Raises:
        UsageError: There is none, with `hint`, or it is not of this version.
    """
    if not (folder / RUN).is_file():
        raise UsageError(f"{folder} holds no run: there is no {RUN} in it", hint)
    return read_of_run(folder, RUN, RUN_INFO)
