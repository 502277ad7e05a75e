"""Where runs go, and what their folders may hold."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.profiling.artifacts import read_profiles
from harness.runs.folder import RUN, make_folder, read_info
from harness.runs.reader import load_run


def test_a_place_for_runs_that_is_no_folder_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        make_folder(Path("/dev/null"), "online")
    assert caught.value.message == "/dev/null is not a folder"


def test_runs_of_one_second_are_numbered(tmp_path: Path) -> None:
    folders = [make_folder(tmp_path / "new", "online") for _ in range(3)]
    assert len(set(folders)) == 3 and all(folder.is_dir() for folder in folders)


@pytest.mark.parametrize("read", [read_info, load_run, read_profiles])
def test_links_and_pipes_are_not_followed(tmp_path: Path, read: Callable[[Path], object]) -> None:
    """A pipe has no end; what is written through a link is a file elsewhere."""
    (run := tmp_path / "run" / "profiles").mkdir(parents=True)
    (run.parent / RUN).touch()
    (run / "link").symlink_to(tmp_path)
    with pytest.raises(UsageError, match="link is a link"):
        read(run.parent)
    (run / "link").unlink()
    os.mkfifo(run / "figures.json")
    with pytest.raises(UsageError, match=r"figures\.json is a named pipe"):
        read(run.parent)


@pytest.mark.parametrize("read", [read_info, load_run])
def test_a_folder_without_a_run_is_no_run_whatever_else_it_holds(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(UsageError, match=r"there is no run\.json in it"):
        read(tmp_path)
    os.mkfifo(tmp_path / RUN)
    with pytest.raises(UsageError, match=r"is a (named pipe|link)"):
        read(tmp_path)
