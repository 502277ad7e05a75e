"""The folder of compiled kernels."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """Folder of built kernels: ROSEINFER_CACHE, else the user's cache folder."""
    folder = os.environ.get("ROSEINFER_CACHE")
    return Path(folder).expanduser() if folder else platformdirs.user_cache_path("roseinfer")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a file in a new folder, which becomes `path` once it is written. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        partial = Path(folder, path.name)
        yield partial
        partial.replace(path)
