"""Ctrl-C, and SIGTERM as a time limit sends it, are both `KeyboardInterrupt`."""

from __future__ import annotations

import signal
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_DEFAULT = (signal.default_int_handler, signal.SIG_DFL)
_heard: list[int] = []


def hear_interrupts() -> None:
    """Raise KeyboardInterrupt at each of the signals that this process was not started to ignore."""
    _heard.clear()
    for number in _SIGNALS:
        if signal.getsignal(number) in _DEFAULT:
            signal.signal(number, _interrupt)


def ignore_interrupts() -> None:
    """Nothing interrupts what follows."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def is_pressed_again() -> bool:
    """Whether the user interrupted more than once, and wants the end at once."""
    return len(_heard) > 1


def _interrupt(number: int, frame: FrameType | None) -> None:
    _heard.append(number)
    raise KeyboardInterrupt
