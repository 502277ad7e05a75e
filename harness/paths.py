"""Folders of the data that comes with the harness, and of what it makes and fetches."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from rosemodels.cache import cache_folder

#: `configs/` and `traces/`: links to the checkout's folders of these names, and files in a wheel.
DATA = Path(str(resources.files("harness"))) / "data"
#: Calibration, environments of engines and fetched traces; named models are next to them.
CACHE = cache_folder()
