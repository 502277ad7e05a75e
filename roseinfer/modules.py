"""Modules of roseinfer, run as processes."""

from __future__ import annotations

import sys
from pathlib import Path


def module_command(name: str) -> list[str]:
    """The command that runs a module.

    Like this process, it looks for modules in the current folder only where it was started as `python -m …`.
    """
    return [sys.executable, *([] if sys.path[0] in ("", str(Path.cwd())) else ["-P"]), "-m", name]
