"""Errors a user can hint. The command line prints them as one line and exits with their code."""


class BenchError(Exception):
    """Something went wrong that the user can do something about.

    Args:
        message: What is wrong, in one sentence.
        hint: What to do about it, in one sentence.
    """

    exit_code = 3

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class UsageError(BenchError):
    """The command line, a settings file or an input file is not what the tool understands."""

    exit_code = 2


class EngineError(BenchError):
    """An engine could not be started, asked or stopped."""


class CleanupError(EngineError):
    """Something of an engine could not be ended: nothing can be measured beside it."""


class InterruptedRunError(BenchError):
    """The user ended a run that can be finished later."""

    exit_code = 130
