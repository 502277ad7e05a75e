"""The folder of a run: where it is, what its files are called, who may work on it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Literal

from harness.errors import UsageError
from harness.files import check_contents, locked
from harness.runs.events import Notify, Prepared
from harness.schema.files import read_stored
from harness.schema.run_info import RunInfo
from harness.schema.setting_types import EngineRef

RUN, JOURNAL, SKIPPED, ANSWERS = "run.json", "journal.jsonl", "skipped.json", "answers.json"
ACCURACY = "accuracy.json"
ONLINE_RESULTS, OFFLINE_RESULTS = "online_results.json", "offline_results.json"
REQUESTS_TABLE = "requests.parquet"
MANIFEST, FIGURES = "profile_manifest.json", "profiles/figures.json"

Kind = Literal["online", "offline", "cancel"]
#: What to give instead of a folder that has no run.
_NAME_ONE = "name the folder of a run, such as outputs/…/online_…"
#: Where runs go without `--out`: below the folder in which the command is given.
DEFAULT = Path("outputs/benchmarks/serving")


def begin_folder(parent: Path | None, kind: Kind, notify: Notify) -> Path:
    """A new folder of `make_folder` for a run of which all settings are checked; none where `notify` raises
    an error then."""
    folder = make_folder(parent, kind)
    try:
        notify(Prepared())
    except BaseException:
        folder.rmdir()
        raise
    return folder


def make_folder(parent: Path | None, kind: Kind) -> Path:
    """A new folder `<kind>_<local time>`, with a number after it where that is taken.

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
    except FileExistsError:
        raise UsageError(f"{parent} is not a folder", "choose another --out") from None
    except OSError as error:
        raise UsageError(
            f"{parent} cannot be written to: {os.strerror(error.errno or 0)}", "choose another --out"
        ) from None
    raise UsageError(f"{parent} holds too many runs of this second", "choose another --out")


@contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """No other process works on the run in `folder` inside.

    Raises:
        UsageError: Another process does, or there is no such folder.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder))
        except BlockingIOError:
            raise UsageError(f"the run in {folder} is still going on", "wait for its end") from None
        except OSError as error:
            why = os.strerror(error.errno or 0)
            raise UsageError(f"{folder} holds no run: {why}", _NAME_ONE) from None
        yield


def check_folder(folder: Path) -> None:
    """Raise UsageError where a folder holds no run, or one with links or devices."""
    if not folder.is_dir():
        why = "is not a folder" if folder.exists() else "does not exist"
        raise UsageError(f"{folder} {why}", _NAME_ONE)
    if not (folder / RUN).exists():
        raise UsageError(f"{folder} holds no run: there is no {RUN} in it", _NAME_ONE)
    check_contents(folder)


def read_info(folder: Path) -> RunInfo:
    """Return the content of a run's `run.json`.

    Raises:
        UsageError: There is none, it is not of this version, or the folder holds links or devices.
    """
    check_folder(folder)
    return read_stored(folder / RUN, RunInfo)


def results_name(folder: Path) -> str | None:
    """Return the name of the results file of a finished run; None if there is none."""
    return next((name for name in (ONLINE_RESULTS, OFFLINE_RESULTS) if (folder / name).is_file()), None)


def resume_command(folder: Path) -> str:
    """Return the command that measures the rest of a run, for a shell.

    Raises:
        UsageError: It is no run of this version.
    """
    info = read_info(folder)
    return f"bench {info.subcommand} --resume {shlex.quote(str(folder))}"


def log_file(run: Path, engine: EngineRef, what: str) -> Path:
    """Return the file for an engine's output: `what` is `server`, `offline` or a profiler."""
    return run / "logs" / f"{str(engine).replace('@', '.')}.{what}.log"
