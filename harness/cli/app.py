"""The `bench` command: what a user can mend is one line, and an exit code."""

from __future__ import annotations

import signal
import sys

from harness.errors import BenchError

INTERRUPTED = 130


def main() -> None:
    """Run a command and exit with its code."""
    said = ""
    try:
        code = _run()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BenchError as error:
        code, said = error.exit_code, str(error)
    if code == INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # pressed again, it would break off the way out
        said = said or "interrupted"
    if said:
        print(f"bench: {said}", file=sys.stderr)
    sys.exit(code)


def _run() -> int:
    """The imports take a second, in which a user may already press Ctrl-C."""
    import typer

    from harness.cli.commands import app

    try:
        code: int | None = app(standalone_mode=False)
    except typer.TyperException as error:
        if message := error.format_message():
            print(f"bench: {message}\n  mend: see `bench --help`, of the command too", file=sys.stderr)
        return error.exit_code
    return code or 0


if __name__ == "__main__":
    main()
