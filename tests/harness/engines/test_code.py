"""Which code a server runs: where its interpreter finds the engine's package, and what is in it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from harness.engines.base import EngineSettings, EngineVariant
from harness.engines.find import LARGE, find_code
from harness.engines.registry import LOCAL
from harness.engines.variants import Variant
from harness.schema.run_info import Code
from harness.schema.setting_types import EngineRef

pytestmark = pytest.mark.integration

PYTHON = Path(sys.executable)


def package(folder: Path, text: str = "") -> Path:
    """Make an engine's package in `folder`."""
    kernels = folder / "roseinfer" / "kernels"
    kernels.mkdir(parents=True)
    (kernels.parent / "__init__.py").write_text(text)
    (kernels / "step.cu").write_text("one")
    return kernels.parent


def code_of(engine: Path) -> Code:
    """Return the code that is found with the folder of `engine` in PYTHONPATH."""
    env = {"PATH": os.defpath, "PYTHONPATH": str(engine.parent)}
    [code] = find_code(PYTHON, "roseinfer", env, here=False)
    assert code.folder == str(engine) and len(code.sha256) == 16
    return code


def test_every_file_counts_but_what_python_compiled(tmp_path: Path):
    made, same, other = (package(tmp_path / name) for name in ("made", "same", "other"))
    (same / "__pycache__").mkdir()
    (same / "__pycache__" / "a.pyc").write_bytes(b"compiled")
    (other / "kernels" / "step.cu").write_text("two")
    sha256 = code_of(made).sha256
    assert code_of(same).sha256 == sha256 != code_of(other).sha256
    (made / "extension.so").write_bytes(b"a" * (LARGE + 1))
    with_binary = code_of(made)
    (made / "extension.so").write_bytes(b"b" * (LARGE + 1))
    assert with_binary.sha256 != sha256 and code_of(made) == with_binary


def test_an_engine_that_cannot_be_found_has_no_code(tmp_path: Path):
    assert find_code(PYTHON, "no_such_engine", os.environ, here=False) == []
    assert find_code(tmp_path / "no-python", "roseinfer", os.environ, here=False) == []


def test_a_folder_of_a_variant_comes_before_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`python -m` looks in the current folder first, where a checkout's own package is."""
    before, now = package(tmp_path / "before", "BEFORE = 1"), package(tmp_path / "now", "NOW = 1")
    monkeypatch.chdir(now.parent)
    monkeypatch.setattr(sys, "path", [str(now.parent), *sys.path])  # as in a process of `python -m`
    engine = LOCAL["roseinfer"]
    monkeypatch.setattr(engine, "flags", lambda installation: {"--no-prefix-cache"})
    installation = engine.installed()
    folders = []
    for env in ({}, {"PYTHONPATH": str(before.parent)}, {"PYTHONPATH": str(tmp_path)}):
        variant = EngineVariant(EngineRef(name="roseinfer"), Variant(label="", env=env), "roseinfer")
        launch = engine.server(installation, EngineSettings(variant, tmp_path, "m", "cpu", "bf16", 64), 1)
        assert launch.argv[1] == "-m"
        folders += [code.folder for code in engine.codes(installation, launch.argv, launch.env)]
    assert folders == [str(now), str(before), str(now)]
