"""Which code of an engine runs: its package, where its interpreter finds it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from harness.modules import ELSEWHERE
from harness.schema.run_info import Code
from harness.telemetry.revision import files_hash

#: Bytes of a file above which its size stands for its contents: compiled code, kernels in binaries.
LARGE = 1 << 20

_FIND = """
import importlib.util, sys
print([*importlib.util.find_spec(sys.argv[1]).submodule_search_locations][0])
"""


def find_code(python: Path, package: str, env: Mapping[str, str], *, here: bool) -> list[Code]:
    """The code of that package as `python` imports it with all of that environment; empty where it cannot.

    Args:
        here: Whether it looks in the current folder too, as after `python -m`.
    """
    code = _FIND if here else ELSEWHERE + _FIND
    try:
        done = subprocess.run(
            [str(python), "-c", code, package],
            env=dict(env),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        folder = Path(done.stdout.rstrip("\n")).resolve()
        return [Code(folder=str(folder), sha256=_hash(folder))]
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return []


def _hash(folder: Path) -> str:
    files = ((path.relative_to(folder), path) for path in folder.rglob("*") if path.is_file())
    counted = sorted((name, path) for name, path in files if "__pycache__" not in name.parts)
    return files_hash(((str(name), path) for name, path in counted), LARGE)
