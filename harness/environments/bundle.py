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
import lzma
import mmap
import re
import shutil
import struct
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
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

MANYLINUX = [f"manylinux_2_{minor}_x86_64" for minor in (5, 17, 24, 26, 27, 28, 31, 34, 35, 39)]
PLATFORMS = [
    *MANYLINUX,
    *(f"{name}_x86_64" for name in ("manylinux2014", "manylinux2010", "manylinux1", "linux")),
]
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
XZ_LEVEL = 6


def read_size(text: str) -> int:
    """Parse a size such as `45M` into bytes. Raises UsageError."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text)
    if match is None or not int(match[1]):
        raise UsageError(f"--part-size {text} is not a size", "write it like 45M")
    return int(match[1]) * UNITS.get(match[2], 1)


def find_bundle(engine: Engine, version: str | None) -> tuple[str, BundleRecipe]:
    """The recipe of that version, or the first one. Raises UsageError if there is none."""
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
    pip(
        f"fetching {engine.name} {version}",
        python,
        ["download", *target, "-d", str(wheels), "-r", pinned],
        log,
    )
    with TemporaryDirectory(prefix="rosebench-bundle-", dir=CACHE) as scratch:
        site = Path(scratch, "site")
        local = ["--no-index", "--find-links", str(wheels), "--no-compile", "--target", str(site)]
        pip(f"unpacking {engine.name} {version}", python, ["install", *target, *local, "-r", pinned], log)
        _reduce(site, recipe)
        return _pack(site, out, part_size, {"engine": engine.name, "version": version}, recipe)


def _reduce(site: Path, recipe: BundleRecipe) -> None:
    """Remove what the recipe names, compiled Python, static libraries, and code for other GPUs."""
    for pattern in [*recipe.drop, "**/__pycache__", "**/*.a"]:
        for path in list(site.glob(pattern)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    if recipe.gpu_arch is not None:
        for library in recipe.slim:
            slim(site / library, recipe.gpu_arch)


class _Parts:
    """A writable file that is cut into parts of at most `size` bytes."""

    def __init__(self, folder: Path, size: int) -> None:
        self._folder, self._size = folder, size
        self.parts: list[dict[str, Any]] = []
        self._buffer = bytearray()

    def write(self, data: bytes) -> int:
        self._buffer += data
        while len(self._buffer) >= self._size:
            self._cut(self._size)
        return len(data)

    def close(self) -> None:
        if self._buffer:
            self._cut(len(self._buffer))

    def _cut(self, size: int) -> None:
        part = bytes(self._buffer[:size])
        del self._buffer[:size]
        name = f"part-{len(self.parts):02d}"
        write_whole(self._folder / name, part)
        self.parts.append({"name": name, "bytes": size, "sha256": hashlib.sha256(part).hexdigest()})


def _pack(site: Path, out: Path, part_size: int, what: dict[str, Any], recipe: BundleRecipe) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    for old in [out / "bundle.json", *out.glob("part-*")]:
        old.unlink(missing_ok=True)
    parts = _Parts(out, part_size)
    with (
        lzma.open(parts, "wb", preset=XZ_LEVEL) as packed,  # type: ignore[call-overload]
        tarfile.open(fileobj=packed, mode="w|") as tar,
    ):
        for path in sorted(site.rglob("*")):  # the order must not depend on the disk
            tar.add(path, path.relative_to(site), recursive=False, filter=_anonymous)
    parts.close()
    write_whole(out / "unpack.py", Path(unpack.__file__).read_bytes())
    manifest = {**what, "python": recipe.python, "torch": recipe.torch, "parts": parts.parts}
    write_whole(out / "bundle.json", json.dumps(manifest, indent=2).encode() + b"\n")
    return out / "bundle.json"


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


MAGIC = b"\x50\xed\x55\xba"
REGION = struct.Struct("<IHHQ")  # magic, version, header size, bytes of entries
ENTRY = struct.Struct("<HHIQIIHHI")  # kind, version, header size, bytes, compressed, -, minor, major, arch
PTX, CUBIN = 1, 2
KINDS = (PTX, CUBIN, 4, 8, 16, 32, 64)
MAX_HEADER = 4096


@dataclass(frozen=True)
class Entry:
    """One payload at `start`, for compute capability `arch` (90 is 9.0)."""

    kind: int
    arch: int
    start: int
    size: int


def regions(data: mmap.mmap | bytes) -> Iterator[list[Entry]]:
    """The entries of each region of GPU code."""
    at = data.find(MAGIC)
    while at >= 0:
        end = at + 4
        if at + REGION.size <= len(data):
            _, version, header, size = REGION.unpack_from(data, at)
            if (version, header) == (1, REGION.size) and at + header + size <= len(data):
                end = at + header + size
                yield list(_entries(data, at + header, end))
        at = data.find(MAGIC, end)


def _entries(data: mmap.mmap | bytes, at: int, end: int) -> Iterator[Entry]:
    while at + ENTRY.size <= end:
        kind, _, header, size, _, _, _, _, arch = ENTRY.unpack_from(data, at)
        if kind not in KINDS or not ENTRY.size <= header <= MAX_HEADER or at + header + size > end:
            return
        yield Entry(kind, arch, at + header, size)
        at += header + size


def loaded(entries: list[Entry], arch: int) -> list[Entry]:
    """The entries that a device of that capability may load: its own cubins, else those that can run on
    it."""
    exact = [e for e in entries if e.kind == CUBIN and e.arch == arch]
    return exact or [
        e
        for e in entries
        if e.arch <= arch and (e.kind == PTX or (e.kind == CUBIN and e.arch // 10 == arch // 10))
    ]


def slim(path: Path, arch: int) -> int:
    """Zero every payload that a device of capability `arch` never loads. Returns the number of bytes."""
    zeroed = 0
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        for entries in regions(data):
            needed = loaded(entries, arch)
            for entry in entries:
                if entry not in needed:
                    data[entry.start : entry.start + entry.size] = bytes(entry.size)
                    zeroed += entry.size
    return zeroed
