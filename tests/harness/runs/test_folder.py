"""Where runs go."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.runs.folder import make_folder


def test_a_place_for_runs_that_is_no_folder_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        make_folder(Path("/dev/null"), "online")
    assert caught.value.message == "/dev/null is not a folder"


def test_runs_of_one_second_are_numbered(tmp_path: Path) -> None:
    folders = [make_folder(tmp_path / "new", "online") for _ in range(3)]
    assert len(set(folders)) == 3 and all(folder.is_dir() for folder in folders)
