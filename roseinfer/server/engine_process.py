"""The engine process as its parent holds it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from types import TracebackType

import msgspec

from roseinfer.config import EngineConfig

#: Turns for which a thread of GNU OpenMP waits awake for the others before it sleeps, about 0.1 ms. Its own
#: default is without end: when another process wants a core, every layer of every step then waits for a time
#: slice of the scheduler. The environment's GOMP_SPINCOUNT or OMP_WAIT_POLICY wins.
SPIN = {"GOMP_SPINCOUNT": "10000"}

#: Seconds that the process gets to end by itself.
STOP_TIMEOUT = 2.0


class EngineProcess:
    """Starts loading at once; `socket` is this side of its channel. Leaving the context ends it.

    It has a process group of its own, so that Ctrl-C in a terminal reaches only its parent; it ends when
    its channel closes, and so never outlives the parent.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.socket, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "roseinfer.engine.process", str(fd), msgspec.json.encode(config)],
                pass_fds=[fd],
                process_group=0,
                env=os.environ if "OMP_WAIT_POLICY" in os.environ else SPIN | os.environ,
                stdin=subprocess.DEVNULL,
            )

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Close the channel, wait until the process has ended, and kill it if it does not."""
        with contextlib.suppress(OSError):  # the process may be gone
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def how_it_ended(self) -> str:
        """In words, for the log: the process must be ending."""
        try:
            code = self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            return "its channel closed"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
