"""The folder in which this distribution keeps what it makes and fetches."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """What `BENCH_CACHE` names, else `rosebench` in the user's cache folder, as platformdirs has it."""
    named = os.environ.get("BENCH_CACHE")
    return Path(named).expanduser().absolute() if named else platformdirs.user_cache_path("rosebench")
