"""The README's first command and the tutorial in a new clone, word for word: `make walk`, some 15 minutes.

What needs more than a CPU and this repository says so in a comment before its block: `<!-- needs: … -->`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from .commands import PROGRAMS, ROOT, blocks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.skipif("BENCH_WALK" not in os.environ, reason="takes minutes: make walk"),
]
#: A run that is measured on a busy machine may have no valid cell, and a gate may have any outcome.
CODES = {"bench online": {0, 3}, "bench compare": {0, 1, 2, 3}}
STARTS = (*PROGRAMS, "export", "server=", "echo", ".")


@dataclass(frozen=True)
class Clone:
    """A clone on a machine that has no other engine, and no cache."""

    folder: Path
    home: Path

    def run(self, script: str, timeout: float) -> tuple[int, str, float]:
        """Exit status, output and seconds of a script of bash, started in the clone."""
        ours = ("BENCH_", "PYTHON", "ROSEINFER_", "XDG_", "VIRTUAL_ENV", "MAKE", "MFLAGS", "ARGS")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
        began = time.monotonic()
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=kept | {"HOME": str(self.home), "COLUMNS": "80"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )
        return done.returncode, done.stdout, time.monotonic() - began


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Iterator[Clone]:
    """A new clone after `make setup`."""
    folder = tmp_path_factory.mktemp("walk")
    (folder / "home").mkdir()
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder / "clone")], check=True)
    clone = Clone(folder / "clone", folder / "home")
    code, output, seconds = clone.run("make setup", 600)
    assert code == 0, output
    print(f"make setup: {seconds:.0f} s, {len(output.splitlines())} lines")
    yield clone
    shutil.rmtree(folder)


def lines(document: Path) -> list[str]:
    """The commands of a document in order, without the blocks that need something else."""
    text = document.read_text(encoding="utf-8")
    without = re.sub(r"<!-- needs: [^>]* -->\n\n(?: {4}.*\n|\n)+", "", text)
    assert "<!-- needs" not in without
    return [line for block in blocks(without) for line in block.splitlines() if line.startswith(STARTS)]


def test_the_first_command_ends_in_a_verdict_within_minutes(clone):
    [first] = [line for line in lines(ROOT / "README.md") if line.startswith("make bench-online")]
    code, output, measuring = clone.run(first, 600)
    shown = output.splitlines()
    said = next((at for at, line in enumerate(shown) if line.startswith(("At ", "No engine"))), None)
    print(f"{first}: {measuring:.0f} s, {said} lines before the verdict:")
    print(output)
    assert code in (0, 3) and said is not None and "roseinfer" in output and "transformers" in output
    assert (clone.folder / shown[-1]).is_file() and shown[-1].endswith("report.html")


def test_the_tutorial_works_word_for_word(clone):
    script = ["trap 'kill $(jobs -p) 2>/dev/null' EXIT"]
    commands = lines(clone.folder / "docs" / "tutorial.md")
    runs = "outputs/benchmarks/serving/online_*"
    first = next(command for command in commands if command.startswith("bench online"))
    again = commands.index("bench report BEFORE AFTER")
    commands.insert(again, first)
    for number, command in enumerate(commands):
        typed = command.replace("BEFORE AFTER", f"$(ls -d {runs} | sed -n '1p;$p')")
        script += [f"echo '@@ {number}'", typed, 'echo "@@ ended $? $SECONDS"']
    _, output, seconds = clone.run("\n".join(script), 1800)
    parts = re.findall(r"^@@ (\d+)\n(.*?)^@@ ended (\d+) (\d+)$", output, flags=re.M | re.S)
    print(f"{len(commands)} commands in {seconds:.0f} s")
    for number, said, status, at in parts:
        print(f"[{at} s, exit status {status}] {commands[int(number)]}\n{said}")
    assert len(parts) == len(commands) > 15, output
    for number, said, status, _ in parts:
        name = " ".join(commands[int(number)].split()[:2])
        assert int(status) in CODES.get(name, {0}), f"{commands[int(number)]}: {said}"
        # a wrong command line is 2 as well
        assert name != "bench compare" or status != "2" or "verdict: inconclusive" in said, said
