"""Finds the Python interpreter that an engine lives in, and asks it for versions.

Looked up in this order, the first that is configured decides:

1. the user's own file (variants.py)
2. the folder `BENCH_PEERS`, which holds one virtual environment per engine: `$BENCH_PEERS/vllm/bin/python`
3. `~/.cache/rosebench/engines/vllm/bin/python`: the user's cache folder, or what `BENCH_CACHE` names
4. the interpreter that runs this harness
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path

from harness import paths
from harness.engines.base import Installation
from harness.engines.variants import user_engine, user_file
from harness.errors import EngineError, UsageError, failure_text
from harness.files import write_whole
from harness.schema.run_info import Code
from harness.schema.setting_types import EngineName
from harness.telemetry.revision import files_hash

#: Distributions whose versions are in `run.json`, by the name the result files use.
REPORTED = ("torch", "transformers")

_PROBE = """
import importlib.metadata as metadata, json
found = {"python": sys.version.split()[0]}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def engines_folder() -> Path:
    """The folder in the cache that holds environments of engines, and what is kept of them."""
    return paths.cache_folder() / "engines"


@dataclass(frozen=True)
class Place:
    """A candidate interpreter and why it is one."""

    python: Path
    how: str
    env: Mapping[str, str] = field(default_factory=dict)


def place(engine: EngineName) -> Place:
    """Return the interpreter that decides for this engine.

    Raises:
        UsageError: the configuration cannot be read, or names an interpreter that is not there.
    """
    user_settings = user_engine(engine)
    if user_settings.python is not None:
        python = user_settings.python.expanduser()
        if not os.access(python, os.X_OK):
            raise UsageError(
                f"{user_file()} names {python} for {engine}, which cannot be run", "correct the path"
            )
        return Place(python, f"named in {user_file()}", user_settings.env)
    folders = [(engines_folder(), f"engines/{engine} in the cache")]
    if peers := os.environ.get("BENCH_PEERS"):
        folders.insert(0, (Path(peers).expanduser(), f"$BENCH_PEERS/{engine}"))
    for folder, how in folders:
        python = folder / engine / "bin" / "python"
        if os.access(python, os.X_OK):
            return Place(python, how, user_settings.env)
    return Place(Path(sys.executable), "this environment", user_settings.env)


def output_of(command: Sequence[str], env: Mapping[str, str] | None = None, timeout_s: float = 60) -> str:
    """Run a short command and return its standard output.

    Args:
        env: Its whole environment; None: ours.

    Raises:
        OSError, subprocess.SubprocessError: It cannot be run, fails, or takes longer than `timeout_s`.
    """
    process = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout_s, check=True)
    return process.stdout


def probe(where: Place, distributions: Sequence[str]) -> dict[str, str]:
    """Return the versions of the `distributions` that are installed there, and `python`'s own.

    Raises:
        UsageError: the interpreter does not run.
    """
    try:
        command = [str(where.python), "-c", paths.ELSEWHERE + _PROBE, *distributions]
        versions: dict[str, str] = json.loads(output_of(command, os.environ | where.env))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise UsageError(
            f"{where.python} ({where.how}) does not run: {failure_text(error)}", "name a working interpreter"
        ) from None
    return versions


HELP_TIMEOUT_S = 180
#: Some help texts cut long options on a narrow terminal.
WIDE = {"COLUMNS": "500"}
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9_-]*")


def supported_flags(installation: Installation, command: Sequence[str], keep: bool) -> frozenset[str]:
    """Return every `--option` in the help. With `keep` the result is cached: some engines need 12 s for it.

    Raises:
        EngineError: the help command failed.
    """
    what = json.dumps([installation.distribution, installation.version, *command]).encode()
    cached = engines_folder() / "flags" / f"{installation.engine}-{sha256(what).hexdigest()[:16]}.json"
    if keep and cached.exists():
        return frozenset(json.loads(cached.read_text()))
    flags = _run_help(tuple(command), tuple(sorted(installation.env.items())))
    if keep:
        write_whole(cached, json.dumps(sorted(flags)).encode())
    return flags


@cache
def _run_help(command: tuple[str, ...], env: tuple[tuple[str, str], ...]) -> frozenset[str]:
    try:
        help_text = output_of(command, os.environ | dict(env) | WIDE, HELP_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineError(
            f"`{' '.join(command)}` failed: {failure_text(error)}",
            "run `bench engines doctor` to see what is missing",
        ) from None
    return frozenset(_FLAG.findall(help_text))


#: Bytes of a file above which its size stands for its contents: compiled code, kernels in binaries.
LARGE = 1 << 20

_FIND = """
import importlib.util, sys
print([*importlib.util.find_spec(sys.argv[1]).submodule_search_locations][0])
"""


def find_code(python: Path, package: str, env: Mapping[str, str], *, here: bool) -> list[Code]:
    """Return the code of a package as `python` imports it with that environment; empty where it cannot.

    Args:
        here: Whether it looks in the current folder too, as after `python -m`.
    """
    code = _FIND if here else paths.ELSEWHERE + _FIND
    try:
        folder = Path(output_of([str(python), "-c", code, package], env).rstrip("\n")).resolve()
        return [Code(folder=str(folder), sha256=_hash(folder))]
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return []


def _hash(folder: Path) -> str:
    files = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    names = sorted(name for name in files if "__pycache__" not in name.parts)
    return files_hash(((str(name), files[name]) for name in names), LARGE)
