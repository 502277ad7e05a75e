"""Modules of the harness, run as processes."""

from __future__ import annotations

import sys
from pathlib import Path

#: Put before code for `python -c`: the current folder is not searched.
ELSEWHERE = "import sys; sys.path[:] = filter(None, sys.path)\n"


def module_command(name: str, python: Path | str = sys.executable) -> list[str]:
    """The command that runs a module.

    Like this process, it looks for modules in the current folder only where it was started as `python -m …`:
    a file of a user there must not take the place of one of ours, or of Python's.
    """
    return [str(python), *([] if sys.path[0] in ("", str(Path.cwd())) else ["-P"]), "-m", name]
