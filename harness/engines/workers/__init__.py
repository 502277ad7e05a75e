"""What runs in an engine's own interpreter: one worker, and one file per engine whose API needs adapting."""

from pathlib import Path


def folder() -> Path:
    """Where the files are that another interpreter runs."""
    return Path(__file__).parent
