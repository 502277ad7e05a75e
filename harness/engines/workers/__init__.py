"""Scripts that run in an engine's own interpreter: one worker, and one file for each engine's API."""

from pathlib import Path


def folder() -> Path:
    """The folder of the scripts that another interpreter runs."""
    return Path(__file__).parent
