"""Makes an engine's own virtual environment in the user's cache folder.

    engines/NAME                       link to the environment that counts, made last
    engines/NAME-VERSION-cpu/          the environment
    engines/NAME-VERSION-cpu/lock.txt  every distribution in it with its version, as pip reads it

What was interrupted has no lock file and no link; the next attempt goes on with it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.engines.base import Installation
from harness.engines.find import CACHE, Place, inspect
from harness.engines.local import LocalEngine
from harness.engines.recipe import SHIMS, Build, Recipe
from harness.engines.variants import load_file
from harness.environments.pip import pip, run
from harness.environments.unpack import UnpackError, point
from harness.errors import EngineError, UsageError
from harness.files import write_whole
from harness.schema.settings import EngineName

LOCK = "lock.txt"
_LIST = """
import importlib.metadata
for line in sorted({f"{one.name}=={one.version}" for one in importlib.metadata.distributions()}):
    print(line)
"""


def find_recipe(engine: LocalEngine, build: Build) -> Recipe:
    """How the engine is installed for that kind of device. Raises UsageError when it cannot be."""
    recipes = load_file(engine.config_file).environments
    if build not in recipes:
        known = ", ".join(f"--{known}" for known in recipes)
        hint = f"there is {known}" if known else f"it is there already, or: {engine.install}"
        raise UsageError(f"{engine.name} cannot be installed for {build}", hint)
    return recipes[build]


def unfinished(engine: EngineName) -> list[Path]:
    """Environments in the cache whose installation was interrupted."""
    made = (python.parents[1] for python in CACHE.glob(f"{engine}-*/bin/python"))
    return [folder for folder in made if not (folder / LOCK).exists() and (folder / "pyvenv.cfg").exists()]


def install(engine: LocalEngine, build: Build, version: str | None = None) -> Installation:
    """Make the environment, unless it is there, and let `engines/NAME` in the cache be it.

    Raises:
        UsageError: there is no recipe, or somebody else is at it.
        EngineError: no package index can be reached, pip failed, or what came does not run.
    """
    recipe = find_recipe(engine, build)
    version = version or recipe.version
    folder = CACHE / f"{engine.name}-{version}-{build}"
    python = folder / "bin" / "python"
    with _alone(folder):
        if fresh := not (folder / LOCK).exists():
            _fill(engine, recipe, version, folder, python)
        where = Place(python, f"engines/{folder.name} in the cache")
        again = f"remove {folder} and try again, perhaps with another --version"
        made = inspect(engine.name, where, engine.distributions, again, engine.needs)
        if not isinstance(made, Installation):
            raise EngineError(made.reason, made.hint)
        if trouble := engine.trouble(made):
            raise EngineError(f"{engine.display} {version} is installed and does not run: {trouble}", again)
        if fresh:
            # -I: of that environment alone, not of the folder that this runs in
            listed = subprocess.run([python, "-I", "-c", _LIST], capture_output=True, check=True).stdout
            write_whole(folder / LOCK, f"# {engine.name} {version} for {build}\n".encode() + listed)
        try:
            point(CACHE / engine.name, folder)
        except UnpackError as error:
            raise UsageError(str(error)) from None
    return made


def _fill(engine: LocalEngine, recipe: Recipe, version: str, folder: Path, python: Path) -> None:
    """Everything between an empty folder and one that can be tried."""
    what = f"installing {engine.name} {version}"
    log = CACHE / f"{folder.name}.install.log"
    if not (folder / "bin" / "pip").exists():
        run(what, [sys.executable, "-m", "venv", str(folder)], log)
    wanted = [package.format(version=version) for package in recipe.packages]
    if recipe.requirements is not None:
        wanted += ["-r", str(engine.config_file.parent / recipe.requirements)]
    pip(what, python, ["install", *wanted], log, recipe.env)
    if recipe.alone:
        pip(
            what,
            python,
            ["install", "--no-deps", *(one.format(version=version) for one in recipe.alone)],
            log,
        )
    if recipe.remove:
        pip(what, python, ["uninstall", "--yes", *recipe.remove], log)
    [packages] = folder.glob("lib/python3*/site-packages")
    for shim in recipe.shims:
        shutil.copy(SHIMS / shim, packages / shim)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else fills the folder inside. Raises UsageError when somebody does."""
    folder.mkdir(parents=True, exist_ok=True)
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise UsageError(f"{folder} is being installed by another process", "wait for its end") from None
    finally:
        os.close(held)
