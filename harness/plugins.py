"""What installed packages add: engines, trace formats and metrics, found through their entry points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from traceback import extract_tb

from harness.errors import BenchError, EngineError, UsageError

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


@contextmanager
def adapter_call(engine: str, method: str) -> Iterator[None]:
    """Around a call of an engine's adapter, which may be somebody else's.

    Raises:
        EngineError: it raises anything but a BenchError. The message names its line.
    """
    try:
        yield
    except BenchError:
        raise
    except Exception as error:
        frames = extract_tb(error.__traceback__)  # this one, the caller's, the adapter's, …
        its_own = frames[min(2, len(frames) - 1)]
        raise EngineError(
            f"`{method}` in the adapter of {engine} raised {type(error).__name__}: {error} "
            f"({its_own.filename}, line {its_own.lineno})",
            "correct the adapter",
        ) from error


def describe(point: EntryPoint) -> str:
    """`toy (toy_engine:Toy of toy-engine)`, for messages."""
    origin = f" of {point.dist.name}" if point.dist is not None else ""
    return f"{point.name} ({point.value}{origin})"
