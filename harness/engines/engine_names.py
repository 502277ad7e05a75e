"""Which engines there are, by name: this project's, and those that installed packages add.

A package adds an engine through an entry point of the group `rosebench.engines` that names its class, a
`harness.engines.base.Engine`.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint

from harness.did_you_mean import did_you_mean
from harness.errors import UsageError
from harness.plugins import find_plugins

GROUP = "rosebench.engines"


@cache
def engine_points() -> dict[str, EntryPoint]:
    """Where each engine's class is. Raises UsageError when two packages use one name."""
    return find_plugins(GROUP)


def check_name(name: str) -> None:
    """Raises UsageError when there is no such engine."""
    known = engine_points()
    if name not in known:
        meant = did_you_mean(name.lower(), known, cutoff=0.65)
        raise UsageError(f"there is no engine {name!r}", f"{meant}known: {', '.join(known)}")
