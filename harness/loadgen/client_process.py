"""A client process, as its parent sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import IO

import msgspec

from harness.errors import BenchError
from harness.loadgen.client_main import WorkerPlan, WorkerResult
from harness.loadgen.load_plan import Progress
from harness.modules import module_command

_STDERR_LINES = 20


class ClientProcess:
    """Starts one client in its own process group and reads its messages.

    Args:
        work: Its share of the load.
        folder: The folder of its plan, its result and its error output.
    """

    def __init__(self, work: WorkerPlan, folder: Path) -> None:
        self.client = work.client
        self.ready = False
        self.progress = Progress(0, 0, 0)
        self._unread = b""
        self._plan_file = folder / f"plan-{work.client}.msgpack"
        self._out_file = folder / f"result-{work.client}.msgpack"
        self._error_file = folder / f"stderr-{work.client}.txt"
        self._plan_file.write_bytes(msgspec.msgpack.encode(work))
        files = (str(self._plan_file), str(self._out_file))
        with self._error_file.open("wb") as stderr:
            self._process = subprocess.Popen(
                [*module_command("harness.loadgen.client_main"), *files],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                bufsize=0,
                start_new_session=True,
            )

    @property
    def stdout(self) -> IO[bytes]:
        """Its standard output, to wait for."""
        assert self._process.stdout is not None
        return self._process.stdout

    def start(self, t0: float) -> None:
        """Tell it when the load begins."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: `check` raises the reason
            self._process.stdin.write(f"{t0!r}\n".encode())

    def read(self) -> bool:
        """Read its messages; False when it has closed its output."""
        data = os.read(self.stdout.fileno(), 65536)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            if line == b"ready":
                self.ready = True
            else:
                self.progress = Progress(*(int(word) for word in line.split()))
        return bool(data)

    def check(self) -> None:
        """Wait for its end.

        Raises:
            BenchError: It failed; its last lines of error output are in the message.
        """
        code = self._process.wait()
        if code != 0:
            lines = self._error_file.read_text(errors="replace").strip().splitlines()[-_STDERR_LINES:]
            raise BenchError("\n".join([f"client process {self.client} ended with code {code}", *lines]))

    def result(self) -> WorkerResult:
        """Its result, after it has ended successfully."""
        return msgspec.msgpack.decode(self._out_file.read_bytes(), type=WorkerResult)

    def kill(self) -> None:
        """Kill its process group."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
