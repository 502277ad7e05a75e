"""The `bench` command: what a user can mend is one line, and an exit code."""

from __future__ import annotations

import sys

from harness.errors import BenchError

INTERRUPTED = 130


def main() -> None:
    """Run a command and exit with its code."""
    try:
        code = _run()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    if code == INTERRUPTED:
        print("bench: interrupted", file=sys.stderr)
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
