"""Packs an engine for a host without a network: pinned wheels, unpacked, reduced, one tar.xz in parts.

| choice | instead of | because |
|---|---|---|
| the unpacked tree | the wheels | no pip on the host, no space for both; it compresses better |
| the host's torch, triton, CUDA libraries | packing them | most of the size; they match its driver |
| parts, the manifest last | one file | transfers limit the size; an incomplete bundle is detected |
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.engines.base import Engine
from harness.engines.find import CACHE
from harness.engines.variants import CONFIGS, BundleRecipe, load_file
from harness.environments import unpack
from harness.environments.install import pip
from harness.errors import UsageError
from harness.files import write_whole

_GLIBC_MINORS = (5, 17, 24, 26, 27, 28, 31, 34, 35, 39)
_SYSTEMS = [*(f"manylinux_2_{minor}" for minor in _GLIBC_MINORS), "manylinux2014", "manylinux2010", "linux"]
PLATFORMS = [f"{system}_x86_64" for system in (*_SYSTEMS, "manylinux1")]
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
XZ_LEVEL = 6


def read_size(text: str) -> int:
    """Parse a size such as `45M` into bytes. Raises UsageError."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text)
    if match is None or not int(match[1]):
        raise UsageError(f"--part-size {text} is not a size", "write it like 45M")
    return int(match[1]) * UNITS.get(match[2], 1)


def find_bundle(engine: Engine, version: str | None) -> tuple[str, BundleRecipe]:
    """Return the recipe of that version, or the first one. Raises UsageError if there is none."""
    recipes = load_file(engine.config_file).bundles
    if not recipes:
        raise UsageError(f"{engine.name} has no bundle recipe", f"add one as in {CONFIGS / 'vllm.yaml'}")
    version = version or next(iter(recipes))
    if version not in recipes:
        raise UsageError(f"{engine.name} {version} cannot be bundled", f"choose one of {', '.join(recipes)}")
    return version, recipes[version]


def make_bundle(engine: Engine, version: str, recipe: BundleRecipe, out: Path, part_size: int) -> Path:
    """Write the bundle into the folder `out`, replacing an older one. Returns its manifest's path.

    Wheels stay in the cache, so a second attempt downloads only what is missing.

    Raises:
        EngineError: a wheel cannot be downloaded.
    """
    wheels = CACHE / "wheels" / f"{engine.name}-{version}"
    log = CACHE / f"{engine.name}-{version}.bundle.log"
    target = [
        *("--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version", recipe.python),
        *(word for abi in (f"cp{recipe.python.replace('.', '')}", "abi3", "none") for word in ("--abi", abi)),
        *(word for platform in PLATFORMS for word in ("--platform", platform)),
    ]
    pinned = str(engine.config_file.parent / recipe.wheels)
    python = Path(sys.executable)
    download = ["download", *target, "-d", str(wheels), "-r", pinned]
    pip(f"fetching {engine.name} {version}", python, download, log)
    with TemporaryDirectory(prefix="rosebench-bundle-", dir=CACHE) as scratch:
        site = Path(scratch, "site")
        local = ["--no-index", "--find-links", str(wheels), "--no-compile", "--target", str(site)]
        pip(f"unpacking {engine.name} {version}", python, ["install", *target, *local, "-r", pinned], log)
        _reduce(site, recipe)
        return _pack(site, out, part_size, {"engine": engine.name, "version": version}, recipe)


def _reduce(site: Path, recipe: BundleRecipe) -> None:
    """Remove the files that the recipe names, compiled Python and static libraries."""
    for pattern in [*recipe.drop, "**/__pycache__", "**/*.a"]:
        for path in list(site.glob(pattern)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _pack(site: Path, out: Path, part_size: int, what: dict[str, Any], recipe: BundleRecipe) -> Path:
    """Write the packages at `site` as parts of one archive, and then the manifest. Returns its path."""
    out.mkdir(parents=True, exist_ok=True)
    for old in [out / "bundle.json", *out.glob("part-*")]:
        old.unlink(missing_ok=True)
    archive = site.with_name("site.tar.xz")
    with tarfile.open(archive, "w:xz", preset=XZ_LEVEL) as tar:  # type: ignore[call-overload]
        for path in sorted(site.rglob("*")):  # the order must not depend on the disk
            tar.add(path, path.relative_to(site), recursive=False, filter=_anonymous)
    parts: list[dict[str, Any]] = []
    with archive.open("rb") as file:
        while part := file.read(part_size):
            name = f"part-{len(parts):02d}"
            write_whole(out / name, part)
            parts.append({"name": name, "bytes": len(part), "sha256": hashlib.sha256(part).hexdigest()})
    write_whole(out / "unpack.py", Path(unpack.__file__).read_bytes())
    manifest = {**what, "python": recipe.python, "torch": recipe.torch, "parts": parts}
    write_whole(out / "bundle.json", json.dumps(manifest, indent=2).encode() + b"\n")
    return out / "bundle.json"


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
