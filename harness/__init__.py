"""The benchmark: replays request traces against serving engines and reports what it measured."""

from pathlib import Path

__version__ = "0.1.0"

#: The checkout that holds `configs/`, `traces/`, `reports/` and `outputs/`.
PROJECT_ROOT = Path(__file__).resolve().parents[1]
