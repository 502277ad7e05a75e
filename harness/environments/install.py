"""Makes an engine's own virtual environment in the user's cache folder.

    engines/NAME                       link to the environment that counts, made last
    engines/NAME-VERSION-cpu/          the environment
    engines/NAME-VERSION-cpu/lock.txt  every distribution in it with its version, as pip reads it

An interrupted installation has no lock file and no link; the next attempt continues it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType

from harness.engines.adapters import SHIMS
from harness.engines.base import Installation
from harness.engines.find import CACHE, Place, inspect
from harness.engines.local import LocalEngine
from harness.engines.process.tree import Guarded, tail
from harness.engines.variants import Build, Recipe, load_file
from harness.environments.unpack import UnpackError, point
from harness.errors import EngineError, UsageError
from harness.files import locked, write_whole
from harness.schema.setting_types import EngineName

LOCK = "lock.txt"
_LIST = """
import importlib.metadata
for line in sorted({f"{d.name}=={d.version}" for d in importlib.metadata.distributions()}):
    print(line)
"""


def find_recipe(engine: LocalEngine, build: Build) -> Recipe:
    """Return the recipe for that kind of device. Raises UsageError when there is none."""
    recipes = load_file(engine.config_file).environments
    if build not in recipes:
        options = ", ".join(f"--{name}" for name in recipes)
        hint = f"choose {options}" if options else f"install it yourself: {engine.install}"
        raise UsageError(f"{engine.name} cannot be installed for {build}", hint)
    return recipes[build]


def unfinished(engine: EngineName) -> list[Path]:
    """Environments in the cache whose installation was interrupted."""
    folders = (python.parents[1] for python in CACHE.glob(f"{engine}-*/bin/python"))
    return [folder for folder in folders if not (folder / LOCK).exists() and (folder / "pyvenv.cfg").exists()]


def install(engine: LocalEngine, build: Build, version: str | None = None) -> Installation:
    """Make the environment, unless it is there, and link `engines/NAME` in the cache to it.

    Raises:
        UsageError: there is no recipe, or another process is installing it.
        EngineError: no package index can be reached, pip failed, or the installed engine does not run.
    """
    recipe = find_recipe(engine, build)
    version = version or recipe.version
    folder = CACHE / f"{engine.name}-{version}-{build}"
    python = folder / "bin" / "python"
    with _locked(folder):
        if fresh := not (folder / LOCK).exists():
            _fill(engine, recipe, version, folder, python)
        where = Place(python, f"engines/{folder.name} in the cache")
        again = f"remove {folder} and try again, with another --version if that fails too"
        installation = inspect(engine.name, where, engine.distributions, again, engine.needs)
        if not isinstance(installation, Installation):
            raise EngineError(installation.reason, installation.hint)
        if trouble := engine.trouble(installation):
            raise EngineError(f"{engine.display} {version} is installed but does not run: {trouble}", again)
        if fresh:
            # -I: only that environment, not the current folder
            listed = subprocess.run([python, "-I", "-c", _LIST], capture_output=True, check=True).stdout
            write_whole(folder / LOCK, f"# {engine.name} {version} for {build}\n".encode() + listed)
        try:
            point(CACHE / engine.name, folder)
        except UnpackError as error:
            raise UsageError(str(error)) from None
    return installation


def _fill(engine: LocalEngine, recipe: Recipe, version: str, folder: Path, python: Path) -> None:
    """Create the environment and install the packages."""
    what = f"installing {engine.name} {version}"
    log = CACHE / f"{folder.name}.install.log"
    if not (folder / "bin" / "pip").exists():
        run(what, [sys.executable, "-m", "venv", str(folder)], log)
    requirements = [package.format(version=version) for package in recipe.packages]
    if recipe.requirements is not None:
        requirements += ["-r", str(engine.config_file.parent / recipe.requirements)]
    pip(what, python, ["install", *requirements], log, recipe.env)
    if recipe.alone:
        alone = [package.format(version=version) for package in recipe.alone]
        pip(what, python, ["install", "--no-deps", *alone], log)
    if recipe.remove:
        pip(what, python, ["uninstall", "--yes", *recipe.remove], log)
    [packages] = folder.glob("lib/python3*/site-packages")
    for shim in recipe.shims:
        shutil.copy(SHIMS / shim, packages / shim)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder. Raises UsageError if another process has locked it."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder))
        except BlockingIOError:
            raise UsageError(f"another process is installing {folder}", "wait until it has ended") from None
        yield


#: What pip prints if no package index answers.
NO_NETWORK = (
    "NewConnectionError",
    "NameResolutionError",
    "Temporary failure in name resolution",
    "Network is unreachable",
    "Connection refused",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "ProxyError",
)
QUIET = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_PROGRESS_BAR": "off"}


def run(what: str, argv: Sequence[str], log: Path, env: Mapping[str, str] = MappingProxyType({})) -> None:
    """Run a setup command to its end, with `env` added; its output is appended to `log`.

    Raises:
        EngineError: it failed. Without a network the hint says what to do.
    """
    process = Guarded(what, argv, os.environ | QUIET | dict(env), log)
    try:
        while (code := process.wait(60.0)) is None:
            pass
    finally:
        process.stop()
    if code == 0:
        return
    output = tail(log, lines=200, start=process.log_start)
    if any(sign in output for sign in NO_NETWORK):
        raise EngineError(
            f"{what}: no package index can be reached ({log})",
            "connect to a network or set PIP_INDEX_URL, and run the command again to continue; "
            "or pack the engine on another machine with `bench engines bundle`",
        )
    errors = [line for line in output.splitlines() if line.startswith("ERROR")] or output.splitlines()[-3:]
    raise EngineError(f"{what} failed: {' '.join(errors[:3])}", f"see {log}")


def pip(
    what: str,
    python: Path,
    arguments: Sequence[str],
    log: Path,
    env: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Run pip of that interpreter. Raises EngineError, as `run` does."""
    run(what, [str(python), "-m", "pip", *arguments, "--retries", "2"], log, env)
