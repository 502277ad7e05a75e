"""py-spy: samples the Python stacks of engines that have no profiler of their own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from harness.errors import EngineError
from harness.schema.profile import Spent

#: Samples a second, and seconds until the stacks are written.
RATE, END_S = 100, 60.0
#: Functions that are kept; all others are one part.
MOST = 20
INSTALL = "pip install 'rosebench[profile]'"


def find_py_spy() -> str | None:
    """Return the program: beside this interpreter, or on PATH."""
    beside = str(Path(sys.executable).parent)
    return shutil.which("py-spy", path=os.pathsep.join([beside, os.environ.get("PATH", "")]))


class StackSampler:
    """Samples all Python processes of a server, each into `PID.stacks`: a line a stack, with its samples."""

    def __init__(self, pids: Sequence[int], folder: Path, program: str | None = None) -> None:
        self._pids, self._folder, self._program = pids, folder, program or find_py_spy()
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Begin. Raises EngineError where there is no py-spy."""
        if self._program is None:
            raise EngineError("py-spy is not installed", INSTALL)
        for pid in self._pids:
            file = self._folder / f"{pid}.stacks"
            options = ["--format", "raw", "--rate", str(RATE), "--nonblocking", "--output", str(file)]
            command = [self._program, "record", "--pid", str(pid), "--duration", "unlimited", *options]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            self._processes.append(process)

    def stop(self) -> None:
        """End, and have the stacks written. Raises EngineError if no process could be sampled."""
        for process in self._processes:
            process.send_signal(signal.SIGINT)
        errors = []
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                message = process.communicate(timeout=END_S)[1].decode(errors="replace")
                errors += message.splitlines()[:1]  # a backtrace follows
            process.kill()
        self._processes.clear()
        if not any(file.stat().st_size for file in self._folder.glob("*.stacks")):
            raise EngineError(
                f"py-spy sampled nothing: {'; '.join(errors)}",
                "it sees Python programs alone, and must be allowed to trace processes (ptrace)",
            )


def read_stacks(folder: Path, label: str) -> Spent:
    """Return the share of the samples in which each function ran itself, waiting threads left out."""
    samples: Counter[str] = Counter()
    for file in folder.glob("*.stacks"):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            stack, _, count = line.rpartition(" ")
            if count.isdigit():
                samples[stack.rpartition(";")[2]] += int(count)
    total = samples.total()
    parts = {name: count / total for name, count in samples.most_common(MOST)}
    rest = 1 - sum(parts.values())
    return Spent(label=label, tool="py-spy", parts=parts | ({"all others": rest} if rest > 1e-9 else {}))
