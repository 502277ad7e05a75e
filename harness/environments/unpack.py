"""Installs a bundle on a host without a network. Standard library only: every bundle has a copy.

    python3 unpack.py [--bundle FOLDER] --to FOLDER [--python PYTHON]

The bundle's folder has `bundle.json`, {"engine", "version", "python", "torch", "unpacked", "parts": [{"name",
"bytes", "sha256"}], "links", "paths", "env"}, and the parts: a tar.xz cut into pieces, whose tar has
`unpacked` bytes. FOLDER/NAME-VERSION gets `site`, the packages, and `bin/python`, which runs PYTHON with
them.
FOLDER/NAME becomes a link to it only when all is done.

A bundle that is for another torch than the host has runs on the one in FOLDER/torch-VERSION, from a bundle of
that name, which several engines share. "links" are places in `site` that lead to the host's packages, "paths"
folders in it that are searched too, "env" variables of `bin/python`.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import lzma
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

_HOST = """
import sys, sysconfig
sys.path[:] = filter(None, sys.path)  # not the current folder
try:
    import torch
except ImportError as error:
    torch = None
versions = "%d.%d" % sys.version_info[:2], torch.__version__ if torch else "none"
print(*versions, sysconfig.get_path("purelib"), sep="\\n")
"""

#: A name of one folder or file: no separator, and no dot in front.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
#: Values of a manifest.
_KINDS = {"engine": str, "version": str, "python": str, "torch": str, "unpacked": int, "parts": list}
_KINDS |= {"links": dict, "paths": list, "env": dict}
_PART_KINDS = {"name": str, "bytes": int, "sha256": str}
#: Bytes of a manifest.
_MAX_MANIFEST = 1 << 20


class UnpackError(Exception):
    """The bundle cannot be installed; the message says why and what to do."""


def read_manifest(bundle: Path) -> dict[str, Any]:
    """Read `bundle.json`. Raises UnpackError if it is missing, incomplete or names places elsewhere."""
    file = bundle / "bundle.json"
    if not file.is_file():
        raise UnpackError(f"{bundle} has no bundle.json; copy the whole bundle")
    try:
        with file.open("rb") as opened:
            manifest: dict[str, Any] = json.loads(opened.read(_MAX_MANIFEST))
        for record, kinds in [(manifest, _KINDS), *((part, _PART_KINDS) for part in manifest["parts"])]:
            for key, kind in kinds.items():
                if type(record[key]) is not kind:
                    raise TypeError(f"{key} is not of the type {kind.__name__}")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnpackError(f"{file} is incomplete: {error}; copy it again") from None
    links = manifest["links"]
    names = [manifest["engine"], manifest["version"], *(part["name"] for part in manifest["parts"])]
    names += [name for path in (*links, *links.values(), *manifest["paths"]) for name in str(path).split("/")]
    names += manifest["env"]
    if wrong := [name for name in names if not _NAME.fullmatch(name)]:
        raise UnpackError(f"{file} has the name {wrong[0]!r}, which may lead elsewhere; use another bundle")
    return manifest


def check_parts(bundle: Path, manifest: dict[str, Any]) -> list[Path]:
    """Return the parts in order. Raises UnpackError naming every part that is missing or damaged."""
    wrong = []
    for part in manifest["parts"]:
        path = bundle / part["name"]
        if not path.is_file():
            wrong.append(f"{part['name']} is missing")
            continue
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != part["sha256"]:
                wrong.append(f"{part['name']} is damaged")
    if wrong:
        raise UnpackError(f"{bundle}: {', '.join(wrong)}; copy these again")
    return [bundle / part["name"] for part in manifest["parts"]]


class _Joined:
    """The parts as one file, read from its start."""

    def __init__(self, parts: Iterable[Path]) -> None:
        self._parts = iter(parts)
        self._file: BinaryIO = io.BytesIO()

    def read(self, size: int) -> bytes:
        while not (content := self._file.read(size)):
            self._file.close()
            if (path := next(self._parts, None)) is None:
                self._file = io.BytesIO()
                break
            self._file = path.open("rb")
        return content


def decompress(parts: Sequence[Path], tar: Path, most: int) -> None:
    """Write the archive whose compressed parts these are, once: a file that can be sought is read in seconds.

    Raises:
        UnpackError: It is damaged, or has over `most` bytes.
    """
    try:
        with lzma.LZMAFile(_Joined(parts)) as content, tar.open("wb") as file:  # type: ignore[arg-type]
            while block := content.read(1 << 20):
                if file.tell() + len(block) > most:
                    raise UnpackError(f"the bundle has over {most} bytes unpacked; use another bundle")
                file.write(block)
    except (lzma.LZMAError, EOFError) as error:
        raise UnpackError(f"the bundle is damaged: {error}; copy it again") from None


def extract(archive: Path, site: Path) -> None:
    """Write the archive's files and folders below `site`, after all of them are checked.

    Raises:
        UnpackError: It is damaged, or has another kind of member or a place elsewhere.
    """
    try:
        with tarfile.open(archive, mode="r:") as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                is_below = not path.is_absolute() and ".." not in path.parts
                if not is_below or not (member.isdir() or member.isreg()) or member.issparse():
                    raise UnpackError(f"the bundle has {member.name!r}, no file below it; use another bundle")
            tar.extractall(site, filter="data")
    except tarfile.TarError as error:
        raise UnpackError(f"the bundle is damaged: {error}; copy it again") from None


def check_host(python: str, manifest: dict[str, Any]) -> Path:
    """Check the interpreter, and return the folder of its packages.

    Raises:
        UnpackError: The bundle is for another version of Python or torch.
    """
    try:
        output = subprocess.run([python, "-c", _HOST], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        reason = str(getattr(error, "stderr", None) or error).strip().splitlines()[-1]
        raise UnpackError(f"{python} does not run: {reason}; choose another with --python") from None
    version, torch, packages = output.splitlines()
    if version != manifest["python"] or (
        manifest["torch"] and not f"{torch.partition('+')[0]}.".startswith(manifest["torch"] + ".")
    ):
        raise UnpackError(
            f"the bundle is for Python {manifest['python']} with torch {manifest['torch'] or 'of its own'}, "
            f"{python} is {version} with torch {torch}; unpack the bundle of that torch first, "
            "or choose another with --python"
        )
    return Path(packages)


def point(link: Path, folder: Path) -> None:
    """Make `link` a symbolic link to `folder`, which is next to it, atomically.

    Raises UnpackError if that name exists and is not a link.
    """
    if link.exists() and not link.is_symlink():
        raise UnpackError(f"{link} exists and is not a link of ours; move it away")
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    fresh.symlink_to(folder.name)
    fresh.replace(link)


def _program(python: str, site: Path, manifest: dict[str, Any]) -> str:
    """Return the script that runs `python` with the packages of `site`.

    torch's own is run by those of engines, so it keeps the packages that they put in front of it."""
    searched = ":".join(str(site / path) for path in (".", *manifest["paths"]))
    earlier = "" if manifest["torch"] else "${PYTHONPATH:+$PYTHONPATH:}"
    assignments = [f"export {name}={shlex.quote(value)}" for name, value in manifest["env"].items()]
    path = f"export PYTHONPATH={earlier}{shlex.quote(searched)}"
    return "\n".join(["#!/bin/sh", path, *assignments, f'exec {shlex.quote(python)} "$@"', ""])


def unpack(bundle: Path, to: Path, python: str) -> Path:
    """Install `bundle` under `to` for the interpreter `python`, or for the torch in `to` that it needs.

    Returns the folder `to/NAME-VERSION`.

    Raises:
        UnpackError: parts are missing or damaged, or the interpreter does not match.
    """
    manifest = read_manifest(bundle)
    parts = check_parts(bundle, manifest)
    own_torch = to / f"torch-{manifest['torch']}" / "bin" / "python"
    if own_torch.exists():
        python = str(own_torch.resolve())
    packages = check_host(python, manifest)
    if missing := [target for target in manifest["links"].values() if not (packages / target).exists()]:
        raise UnpackError(f"{packages} lacks {', '.join(missing)}, which the bundle needs; install it")
    folder = to / f"{manifest['engine']}-{manifest['version']}"
    if folder.exists() and not (folder / "site").is_dir():
        raise UnpackError(f"{folder} is of no bundle; move it away")
    to.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(to).free) < 2 * manifest["unpacked"]:
        raise UnpackError(f"{to} has {free} bytes free of {2 * manifest['unpacked']} needed; free some space")
    partial = to / f".{folder.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        (partial / "bin").mkdir(parents=True)
        archive = partial / "site.tar"
        decompress(parts, archive, manifest["unpacked"])
        extract(archive, partial / "site")
        archive.unlink()
        for place, target in manifest["links"].items():
            link = partial / "site" / place
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(packages / target)
        program = partial / "bin" / "python"
        program.write_text(_program(python, folder.resolve() / "site", manifest))
        program.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)  # only now: unpacking may fail, as on a full disk
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    # Compile all modules now, on every core, rather than in the engine's first start.
    compileall = [python, "-m", "compileall", "-q", "-j", "0", str(folder / "site")]
    subprocess.run(compileall, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    point(to / manifest["engine"], folder)
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bundle", type=Path, default=Path(__file__).parent, help="the bundle's folder")
    parser.add_argument(
        "--to", type=Path, required=True, help="folder of all engines, e.g. ~/.cache/rosebench/engines"
    )
    parser.add_argument("--python", default=sys.executable, help="Python interpreter with torch")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # which removes what is unpacked by half
    try:
        folder = unpack(options.bundle, options.to, options.python)
    except (UnpackError, OSError, KeyboardInterrupt) as error:
        sys.stderr.write(f"{error or 'interrupted'}\n")
        return 130 if isinstance(error, KeyboardInterrupt) else 2
    sys.stdout.write(f"{folder / 'bin' / 'python'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
