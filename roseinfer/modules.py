"""Modules of roseinfer as processes: their commands, and how they ended."""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import threading
from pathlib import Path


def module_command(name: str) -> list[str]:
    """The command that runs a module, which calls `keep_what_is_made` once it has begun.

    As this process, it imports from the current folder only if this process was started as `python -m …`.
    """
    here = [] if sys.path[0] in ("", str(Path.cwd())) else ["-P"]
    return [sys.executable, *here, "-m", "roseinfer.start", name]


def keep_what_is_made() -> None:
    """Look for garbage from now on, which `roseinfer.start` left off, but not in what there is now."""
    gc.collect()
    gc.freeze()
    gc.enable()


def leave_signals_to_parent() -> None:
    """Ignore SIGINT and SIGTERM, which may be sent to all processes: this one ends with its parent, which
    answers clients first."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def end_with(sock: socket.socket) -> None:
    """Exit this process, whatever it is doing, when the other side of `sock` is gone."""

    def watch() -> None:
        poll = select.poll()
        poll.register(sock, 0)  # a hang-up is always reported
        poll.poll()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def how_it_ended(code: int) -> str:
    """In words, what a process's exit code says; one below 0 is minus the signal that killed it."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
