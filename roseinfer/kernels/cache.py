"""The folder of compiled kernels."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """Folder of built kernels: ROSEINFER_CACHE, else the user's cache folder."""
    folder = os.environ.get("ROSEINFER_CACHE")
    return Path(folder).expanduser() if folder else platformdirs.user_cache_path("roseinfer")


def keep(path: Path, binary: bytes) -> None:
    """Write a file of that folder, whole or not at all. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        Path(folder, path.name).write_bytes(binary)
        Path(folder, path.name).replace(path)
