"""The `bench` command: what a user can hint is one line, and an exit code."""

from __future__ import annotations

import errno
import signal
import sys

from harness.errors import BenchError

INTERRUPTED = 130

#: What a file system refuses and a user can hint: no space, no permission, a file where a folder should be.
_REFUSED = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
}


def main() -> None:
    """Run a command and exit with its code."""
    said = ""
    try:
        code = _run()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BenchError as error:
        code, said = error.exit_code, str(error)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        where = f"{error.filename}: " if error.filename else ""
        code = BenchError.exit_code
        hint = "make room, let this user write there, or choose another --out"
        said = f"{where}{error.strerror}\n  hint: {hint}"
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
        if message := error.format_message().replace(": Value error, ", ": "):
            print(f"bench: {message}\n  hint: see `bench --help` and `bench COMMAND --help`", file=sys.stderr)
        return error.exit_code
    return code or 0


if __name__ == "__main__":
    main()
