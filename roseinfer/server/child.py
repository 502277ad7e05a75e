"""Child processes of a server process, and the return of freed memory in all of them."""

from __future__ import annotations

import contextlib
import ctypes
import socket
import subprocess
from collections.abc import Mapping, Sequence

from roseinfer.modules import how_it_ended, module_command

#: Seconds that a process gets to end by itself.
STOP_TIMEOUT = 2.0
#: Blocks of at least this many bytes are mapped one by one, and unmapped when they are freed. glibc would
#: otherwise raise the threshold when it frees such a block (mallopt(3)).
_OWN_BLOCK, _M_MMAP_THRESHOLD = 128 << 10, -3


def return_freed_blocks() -> None:
    """Return large blocks to the system as soon as they are freed. Does nothing without glibc."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _OWN_BLOCK)


class Child:
    """A module run as a process with a `name` for the log, which inherits `sockets`, closed here afterwards,
    and the file descriptors `shared`, which stay open.

    It has a process group of its own, so that Ctrl-C in a terminal reaches only its parent.
    """

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        sockets: Sequence[socket.socket],
        *,
        shared: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [*module_command(module), *arguments],
            pass_fds=[*shared, *(sock.fileno() for sock in sockets)],
            process_group=0,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
        for sock in sockets:
            sock.close()

    def wait_or_kill(self) -> None:
        """Wait STOP_TIMEOUT seconds for it to end by itself, then kill it."""
        if self.exit_code() is None:
            self.kill()

    @property
    def code(self) -> int | None:
        """Exit code, or minus the signal that killed it; None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()

    def exit_code(self) -> int | None:
        """Return the `code` of a process that is ending; None if it does not end in time."""
        try:
            return self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            return None

    def how_it_ended(self) -> str:
        """Describe the end of a process that is ending, for the log."""
        code = self.exit_code()
        return "its channel closed" if code is None else how_it_ended(code)
