"""Commands that run modules of roseinfer as processes."""

from __future__ import annotations

import sys
from pathlib import Path


def module_command(name: str) -> list[str]:
    """The command that runs a module.

    As this process, it imports from the current folder only if this process was started as `python -m …`.
    """
    return [sys.executable, *([] if sys.path[0] in ("", str(Path.cwd())) else ["-P"]), "-m", name]
