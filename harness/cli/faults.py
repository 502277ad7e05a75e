"""Interrupts of the user, and errors of the file system that a user can fix.

Ctrl-C, and SIGTERM as a time limit sends it, are both `KeyboardInterrupt`.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from functools import cache
from types import FrameType

from harness.errors import BenchError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_DEFAULT = (signal.default_int_handler, signal.SIG_DFL)
#: Seconds after which an interruption ends whatever still runs.
_END_S = 2.0
INTERRUPTED = 130
_received: list[int] = []
_saves = False


def handle_interrupts() -> None:
    """Raise KeyboardInterrupt at each of the signals that this process was not started to ignore."""
    _received.clear()
    for number in _SIGNALS:
        if signal.getsignal(number) in _DEFAULT:
            signal.signal(number, _interrupt)
    signal.set_wakeup_fd(_watched())


@cache
def _watched() -> int:
    """Start the thread that ends this process; returns the descriptor by which signals reach it."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    threading.Thread(target=_end_after, args=(reader,), daemon=True).start()
    return writer


def save_first() -> None:
    """From here on, take as long as it needs to save what is measured; a second interruption ends it."""
    global _saves
    _saves = True


def _end_after(reader: int) -> None:
    """End the process if an interruption has not: what it waits for, or a library computes, may never end."""
    presses = 0
    while presses <= _saves:
        presses += os.read(reader, 1)[0] in _SIGNALS
    time.sleep(_END_S)
    os.write(2, b"bench: interrupted\n")
    os._exit(INTERRUPTED)


def ignore_interrupts() -> None:
    """Ignore interrupts from here on."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def is_pressed_again() -> bool:
    """Return whether the user interrupted more than once, to end at once."""
    return len(_received) > 1


def _interrupt(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    raise KeyboardInterrupt


#: What to do about each.
_FIXES = {
    "free some space": (errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    "allow more open files (`ulimit -n`)": (errno.EMFILE, errno.ENFILE),
    "choose a shorter path": (errno.ENAMETOOLONG,),
    "look at the links in the path": (errno.ELOOP,),
    "check the disk": (errno.EIO,),
    # Also a file where a folder should be, and a place where nothing can be made.
    "fix the permissions": (
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOENT),
    ),
}
_FIX = {number: fix for fix, numbers in _FIXES.items() for number in numbers}


def refused(error: OSError, after: str = "") -> BenchError | None:
    """Return an error with a hint; None if a user cannot fix it.

    Args:
        after: What to do when it is fixed, for a run that has a folder.
    """
    if error.errno is None or (fix := _FIX.get(error.errno)) is None:
        return None
    where = f"{error.filename}: " if error.filename else ""
    hint = f"{fix}; then {after}" if after else f"{fix}, or choose another --out"
    return BenchError(where + os.strerror(error.errno), hint)
