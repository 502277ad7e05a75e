"""Ctrl-C, and SIGTERM as a time limit sends it, are both `KeyboardInterrupt`."""

from __future__ import annotations

import signal
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_DEFAULT = (signal.default_int_handler, signal.SIG_DFL)
_received: list[int] = []


def handle_interrupts() -> None:
    """Raise KeyboardInterrupt at each of the signals that this process was not started to ignore."""
    _received.clear()
    for number in _SIGNALS:
        if signal.getsignal(number) in _DEFAULT:
            signal.signal(number, _interrupt)


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
