"""Errors that a user can fix. The command line prints one as a line and a hint, and exits with its code."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from difflib import get_close_matches

from harness.plain_text import visible

_EXCEPTION = re.compile(r"[\w.]*(Error|Exception)\b")


class BenchError(Exception):
    """An error that the user can do something about.

    Args:
        message: What is wrong, in one sentence. It may quote text from outside.
        hint: How to fix it, in one sentence.
        new_run: Whether the hint changes settings, which a run that has begun keeps.
    """

    exit_code = 3

    def __init__(self, message: str, hint: str = "", *, new_run: bool = False) -> None:
        super().__init__(message)
        self.message = visible(message)
        self.hint = visible(hint)
        self.new_run = new_run

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class UsageError(BenchError):
    """The command line, a settings file or an input file is wrong."""

    exit_code = 2


class EngineError(BenchError):
    """An engine could not be started, used or stopped."""


class BusyServerError(EngineError):
    """A server has no time for a request now."""


class LostNodeError(EngineError):
    """A node of a cluster, or its process, does not answer any more."""


class BusyMachineError(BenchError):
    """Other programs take so much of this machine that nothing can be measured."""


class CleanupError(EngineError):
    """A process or GPU memory of an engine is still there after it was stopped: measuring cannot continue."""


class NothingMeasuredError(BenchError):
    """Every cell of a run failed; its folder says why."""


class InterruptedRunError(BenchError):
    """The user interrupted a run that can be finished later."""

    exit_code = 130


def is_interruption(error: BaseException | None) -> bool:
    """Return whether an error was raised as the user's interruption ended what it is about."""
    return error is not None and (isinstance(error, KeyboardInterrupt) or is_interruption(error.__context__))


def failure_text(error: Exception) -> str:
    """Return why a program failed: its last exception, else its last line, and how it ended."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it has not ended after {error.timeout:g} s"
    if not isinstance(error, subprocess.CalledProcessError):
        return str(error)
    code = error.returncode
    how = f"exit code {code}" if code >= 0 else f"signal {-code}"
    lines = [line.strip() for line in str(error.stderr or "").splitlines() if line.strip()]
    reasons = [line for line in lines if _EXCEPTION.match(line)] or lines
    return f"{reasons[-1]} ({how})" if reasons else how


def did_you_mean(name: str, names: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> str:
    """Return `did you mean vllm? ` if a name is close to up to `most` of `names`; else empty.

    Args:
        cutoff: difflib's ratio from which on a name is close.
    """
    close = get_close_matches(name, list(names), most, cutoff)
    return f"did you mean {' or '.join(close)}? " if close else ""
