"""Folders of the data that comes with the harness and of what it makes, and where modules are looked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from rosemodels.cache import cache_folder

__all__ = ["DATA", "ELSEWHERE", "cache_folder", "copies", "module_command"]

#: `configs/` and `traces/`: links to the checkout's folders of these names, and files in a wheel.
DATA = Path(str(resources.files("harness"))) / "data"
#: Put before code for `python -c`: the current folder is not searched.
ELSEWHERE = "import sys; sys.path[:] = filter(None, sys.path)\n"


def copies(file: str, variable: str, *folders: Path) -> Iterator[Path]:
    """Yield the files of that name, in the folders that an environment variable names and then in `folders`:
    in each itself, then in the folders in it."""
    named = [Path(folder) for folder in os.environ.get(variable, "").split(os.pathsep) if folder]
    for folder in (*named, *folders):
        yield from filter(Path.is_file, (folder / file, *sorted(folder.glob(f"*/{file}"))))


def module_command(name: str, python: Path | str = sys.executable) -> list[str]:
    """Return the command that runs a module.

    Like this process, it looks for modules in the current folder only where it was started as `python -m …`:
    a file of a user there must not take the place of one of ours, or of Python's.
    """
    return [str(python), *([] if sys.path[0] in ("", str(Path.cwd())) else ["-P"]), "-m", name]
