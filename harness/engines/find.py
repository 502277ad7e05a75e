"""Finds the Python interpreter that an engine lives in, and asks it for versions.

Looked up in this order, the first that is configured decides:

1. the user's own file (configured.py)
2. the folder `BENCH_PEERS`, which holds one virtual environment per engine: `$BENCH_PEERS/vllm/bin/python`
3. `~/.cache/rosebench/engines/vllm/bin/python`: the user's cache folder, or what `BENCH_CACHE` names
4. the interpreter that runs this harness
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness import paths
from harness.engines.base import Installation, Missing
from harness.engines.configured import user_engine, user_file
from harness.errors import UsageError, failure_text
from harness.modules import ELSEWHERE
from harness.schema.engine_ref import EngineName

CACHE = paths.CACHE / "engines"
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


@dataclass(frozen=True)
class Place:
    """A candidate interpreter and why it is one."""

    python: Path
    how: str
    env: Mapping[str, str] = field(default_factory=dict)


def place(engine: EngineName) -> Place:
    """The interpreter that decides for this engine.

    Raises:
        UsageError: the configuration cannot be read, or names an interpreter that is not there.
    """
    own = user_engine(engine)
    if own.python is not None:
        python = own.python.expanduser()
        if not os.access(python, os.X_OK):
            raise UsageError(
                f"{user_file()} names {python} for {engine}, which cannot be run", "correct the path"
            )
        return Place(python, f"named in {user_file()}", own.env)
    folders = [(CACHE, f"engines/{engine} in the cache")]
    if peers := os.environ.get("BENCH_PEERS"):
        folders.insert(0, (Path(peers).expanduser(), f"$BENCH_PEERS/{engine}"))
    for folder, how in folders:
        python = folder / engine / "bin" / "python"
        if os.access(python, os.X_OK):
            return Place(python, how, own.env)
    return Place(Path(sys.executable), "this environment", own.env)


def probe(where: Place, distributions: Sequence[str]) -> dict[str, str]:
    """Versions of those of `distributions` that are installed there, and `python`'s own.

    Raises:
        UsageError: the interpreter does not run.
    """
    try:
        done = subprocess.run(
            [str(where.python), "-c", ELSEWHERE + _PROBE, *distributions],
            env=os.environ | where.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        versions: dict[str, str] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise UsageError(
            f"{where.python} ({where.how}) does not run: {failure_text(error)}", "name a working interpreter"
        ) from None
    return versions


def find(
    engine: EngineName, distributions: Sequence[str], hint: str, needs: Sequence[str] = ()
) -> Installation | Missing:
    """The engine, where `place` says that it is. `hint` says how to install it."""
    return inspect(engine, place(engine), distributions, hint, needs)


def inspect(
    engine: EngineName, where: Place, distributions: Sequence[str], hint: str, needs: Sequence[str] = ()
) -> Installation | Missing:
    """The engine in that environment, which must have all of `needs`; its package is the first of
    `distributions` that is there."""
    versions = probe(where, [*distributions, *needs, *REPORTED])
    found = next((distribution for distribution in distributions if distribution in versions), None)
    lacks = (
        [" or ".join(distributions)] if found is None else [name for name in needs if name not in versions]
    )
    if found is None or lacks:
        return Missing(engine, f"{where.how} ({where.python}) has no {', '.join(lacks)}", hint)
    reported = {name: versions[name] for name in ("python", *REPORTED) if name in versions}
    return Installation(engine, versions[found], found, where.python, where.how, where.env, reported)
