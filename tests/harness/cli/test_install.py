"""The harness runs without torch, transformers and gguf, which only engines and models need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness.bench_process import SEVERAL

pytestmark = pytest.mark.integration

#: Runs the commands that its input lists, where some packages are not installed.
COMMANDS = f"""
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "gguf"):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, NotInstalled())
{SEVERAL}
"""


def test_help_report_and_a_closed_loop_need_no_engine(shared_mock: Any, tmp_path: Path) -> None:
    load = "--concurrency 2 --n 8 --input-len 8 --output-len 4 --warmup 2 --no-calibrate --no-figures"
    loop = ["online", "--base-url", shared_mock.url, *load.split(), "--max-model-len", "64"]
    commands = [["--help"], ["engines", "list"], ["traces", "list"], ["calibrate", "--help"]]
    commands += [[*loop, "--out", str(tmp_path)]]
    commands += [["report", str(tmp_path / "online_*"), "--out", str(tmp_path / "report.html")]]
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS], input=json.dumps(commands), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [code or 0 for code, _, _ in json.loads(done.stdout)] == [0] * len(commands), done.stdout
    [folder] = tmp_path.glob("online_*")
    assert (folder / "report.html").is_file() and (tmp_path / "report.html").is_file()
