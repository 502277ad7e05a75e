"""The `bench` command. An error that the user can fix is one line, a hint and an exit code."""

from __future__ import annotations

import gc
import os
import sys
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

from harness.cli.interrupts import handle_interrupts, ignore_interrupts
from harness.cli.refused import refused
from harness.errors import BenchError
from harness.plain_text import hide_values, visible

INTERRUPTED = 130

#: `bench online` and `bench offline` name the number of requests differently; a search chooses the load.
_ELSEWHERE = {"--n": "--num-prompts", "--num-prompts": "--n"} | dict.fromkeys(
    ("--concurrency", "--request-rate", "--scales"), "--by"
)


def main() -> None:
    """Run a command and exit with its code."""
    message = ""
    handle_interrupts()
    try:
        code = _run()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BenchError as error:
        code, message = error.exit_code, str(error)
    except OSError as error:
        if (fault := refused(error)) is None:
            raise
        code, message = fault.exit_code, str(fault)
    if code == INTERRUPTED:
        ignore_interrupts()  # the clean-up
        message = message or "interrupted"
    if message:
        print(f"bench: {visible(message)}", file=sys.stderr)
    gc.freeze()  # the interpreter's end looks through all that is left for garbage
    sys.exit(code)


def _run() -> int:
    """Imports here, because they take a second in which a user may press Ctrl-C."""
    import typer

    from harness.cli.commands import app
    from harness.schema.base import plainly

    hide_values(os.environ)
    try:
        code: int | None = app(standalone_mode=False)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        message = _bad_value(error) or plainly(error.format_message())
        similar = getattr(error, "possibilities", None) or []  # for an unknown option
        if similar:
            message, _, _ = message.partition(" (Possible options")
        close = get_close_matches(message.split()[-1], similar, 1, cutoff=0.7) if similar else []
        if other := _elsewhere(getattr(error, "option_name", ""), context):
            close = [other]
        hint = "".join(f"did you mean {option}? " for option in close) + _help(context)
        if message.startswith("Usage: "):
            print(message, file=sys.stderr)
        elif message:
            print(f"bench: {visible(message)}\n  hint: {hint}", file=sys.stderr)
        return error.exit_code
    return code or 0


def _bad_value(error: Any) -> str | None:
    """The option, the value that it has on the command line and what it takes; None for other errors."""
    from harness.schema.base import MUST, plainly, value_text

    names = getattr(getattr(error, "param", None), "opts", [""])
    if type(error).__name__ != "BadParameter" or not names[-1].startswith("--"):
        return None
    what = plainly(error.message)
    words = [part for word in sys.argv for part in word.split("=", 1 if word.startswith("--") else 0)]
    given = [value for option, value in pairwise(words) if option in names]
    value = f"{value_text(given[-1])} " if given and what.startswith(MUST) else ""
    return f"{names[-1]}: {value}{what}"


def _elsewhere(option: str, context: Any) -> str | None:
    """The name of this command for an option of another one."""
    name = _ELSEWHERE.get(option)
    known = [known for param in context.command.params for known in param.opts] if context else []
    return name if name in known else None


def _help(context: Any) -> str:
    """Where the options of the command are listed that was called."""
    names: list[str] = []
    while context is not None and context.parent is not None:
        names.insert(0, context.info_name)
        context = context.parent
    if not names:
        return "`bench --help` lists the commands, `bench COMMAND --help` their options"
    return f"see `bench {' '.join(names)} --help`"


if __name__ == "__main__":
    main()
