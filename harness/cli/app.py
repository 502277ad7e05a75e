"""The `bench` command. An error that the user can fix is one line, a hint and an exit code."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

from harness.cli.faults import INTERRUPTED, handle_interrupts, ignore_interrupts, refused
from harness.errors import BenchError
from harness.plain_text import hide_values, visible

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
    """Run the command; imports here take a second, in which a user may press Ctrl-C."""
    import typer

    from harness.cli.commands import app

    hide_values(os.environ)
    try:
        code: int | None = app(prog_name="bench", standalone_mode=False)
    except typer.TyperException as error:
        message = error.format_message().replace("Value error, ", "")
        if message.startswith("Usage: "):
            print(message, file=sys.stderr)
        elif message:
            print(f"bench: {visible(message)}\n  hint: {_hint(error)}", file=sys.stderr)
        return error.exit_code
    return code or 0


def _hint(error: Any) -> str:
    """Return this command's name for an option of another one, and where its options are listed."""
    context = getattr(error, "ctx", None)
    if context is None or context.parent is None:
        return "`bench --help` lists the commands, `bench COMMAND --help` their options"
    options = [option for param in context.command.params for option in param.opts]
    help_option = "--help-all" if "--help-all" in options else "--help"
    other = _ELSEWHERE.get(getattr(error, "option_name", ""))
    return (
        f"did you mean {other}? " if other in options else ""
    ) + f"see `{context.command_path} {help_option}`"


if __name__ == "__main__":
    main()
