"""The folder in which this distribution keeps what it makes and fetches."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """The folder that `BENCH_CACHE` names, else `rosebench` in the user's cache folder, as platformdirs has
    it."""
    folder = os.environ.get("BENCH_CACHE")
    return Path(folder).expanduser().absolute() if folder else platformdirs.user_cache_path("rosebench")
