"""What installed packages add: engines, trace formats and metrics, found through their entry points."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points

from harness.errors import UsageError

#: This project's distribution.
OURS = "rosebench"


def find_plugins(group: str, own: Mapping[str, str]) -> dict[str, EntryPoint]:
    """Everything of a group by name: this project's in its order, then other packages' by name.

    Args:
        group: such as `rosebench.engines`.
        own: this project's, as `module:object`. They are found also where it runs without being installed.

    Raises:
        UsageError: a name is taken.
    """
    found = {name: EntryPoint(name, value, group) for name, value in own.items()}
    for point in sorted(entry_points(group=group)):
        if point.dist is not None and point.dist.name == OURS:
            continue
        if point.name in found and found[point.name].value != point.value:
            raise UsageError(
                f"{describe(point)} has the name of {describe(found[point.name])}",
                "uninstall its package, or give it another name",
            )
        found[point.name] = point
    return found


def load_plugin(point: EntryPoint) -> object:
    """What an entry point names.

    Raises:
        UsageError: it cannot be imported.
    """
    try:
        found: object = point.load()
    except Exception as error:  # whatever somebody else's module raises
        raise UsageError(
            f"{describe(point)} cannot be loaded: {error}", "correct or uninstall its package"
        ) from error
    return found


def describe(point: EntryPoint) -> str:
    """`toy (toy_engine:Toy of toy-engine)`, for messages."""
    origin = f" of {point.dist.name}" if point.dist is not None else ""
    return f"{point.name} ({point.value}{origin})"
