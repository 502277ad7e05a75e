"""Installs a bundle on a host without a network. Standard library only: every bundle has a copy.

    python3 unpack.py [--bundle FOLDER] --to FOLDER [--python PYTHON]

The bundle's folder has `bundle.json`, {"engine", "version", "python", "torch", "parts": [{"name", "bytes",
"sha256"}]}, and the parts: a tar.xz cut into pieces. FOLDER/NAME-VERSION gets `site`, the packages, and
`bin/python`, which runs PYTHON with them. FOLDER/NAME becomes a link to it only when all is done.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

_VERSIONS = """
import sys
sys.path[:] = filter(None, sys.path)  # not the current folder
try:
    import torch
except ImportError as error:
    torch = None
print("%d.%d" % sys.version_info[:2], torch.__version__ if torch else "none")
"""

#: Keys of a manifest.
_KEYS = ("engine", "version", "python", "torch", "parts")


class UnpackError(Exception):
    """The bundle cannot be installed; the message says why and what to do."""


def read_manifest(bundle: Path) -> dict[str, Any]:
    """Read `bundle.json`. Raises UnpackError if it is missing or incomplete."""
    file = bundle / "bundle.json"
    try:
        manifest: dict[str, Any] = json.loads(file.read_text())
        for key in _KEYS:
            manifest[key]
    except FileNotFoundError:
        raise UnpackError(f"{bundle} has no bundle.json; copy the whole bundle") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnpackError(f"{file} is incomplete: {error!r}; copy it again") from None
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


def check_host(python: str, manifest: dict[str, Any]) -> None:
    """Check the interpreter. Raises UnpackError if the bundle is for another version of Python or torch."""
    try:
        output = subprocess.run([python, "-c", _VERSIONS], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        reason = str(getattr(error, "stderr", None) or error).strip().splitlines()[-1]
        raise UnpackError(f"{python} does not run: {reason}; choose another with --python") from None
    version, torch = output.split()
    if version != manifest["python"] or not f"{torch}.".startswith(manifest["torch"] + "."):
        raise UnpackError(
            f"the bundle is for Python {manifest['python']} with torch {manifest['torch']}, "
            f"{python} is {version} with torch {torch}; choose another with --python"
        )


def point(link: Path, folder: Path) -> None:
    """Make `link` a symbolic link to `folder`, which is next to it, atomically.

    Raises UnpackError if that name exists and is not a link.
    """
    if link.exists() and not link.is_symlink():
        raise UnpackError(f"{link} exists and is not a link of ours; move it away")
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    fresh.symlink_to(folder.name)
    fresh.replace(link)


def unpack(bundle: Path, to: Path, python: str) -> Path:
    """Install `bundle` under `to` for the interpreter `python`. Returns the folder `to/NAME-VERSION`.

    Raises:
        UnpackError: parts are missing or damaged, or the interpreter does not match.
    """
    manifest = read_manifest(bundle)
    parts = check_parts(bundle, manifest)
    check_host(python, manifest)
    folder = to / f"{manifest['engine']}-{manifest['version']}"
    partial = to / f".{folder.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "bin").mkdir(parents=True)
    archive = partial / "site.tar.xz"
    with archive.open("wb") as joined:
        for part in parts:
            joined.write(part.read_bytes())
    with tarfile.open(archive, "r:xz") as tar:
        tar.extractall(partial / "site", filter="data")
    archive.unlink()
    program = partial / "bin" / "python"
    site = shlex.quote(str(folder.resolve() / "site"))
    program.write_text(f'#!/bin/sh\nexport PYTHONPATH={site}\nexec {shlex.quote(python)} "$@"\n')
    program.chmod(0o755)
    shutil.rmtree(folder, ignore_errors=True)  # only now: unpacking may fail, as on a full disk
    partial.rename(folder)
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
    try:
        folder = unpack(options.bundle, options.to, options.python)
    except UnpackError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{folder / 'bin' / 'python'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
