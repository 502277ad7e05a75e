"""What installed packages add: engines, trace formats and metrics, found through their entry points."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from pathlib import Path
from traceback import extract_tb

from harness.errors import BenchError, EngineError, UsageError


def find_plugins(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group, such as `rosebench.engines`, by name in alphabetical order.

    Raises:
        UsageError: two packages use one name.
    """
    plugins: dict[str, EntryPoint] = {}
    for point in sorted([*_of_checkout(group), *entry_points(group=group)]):
        other = plugins.setdefault(point.name, point)
        if other.value != point.value:
            raise UsageError(
                f"{describe(point)} has the name of {describe(other)}",
                "uninstall its package, or give it another name",
            )
    return plugins


def _of_checkout(group: str) -> Iterable[EntryPoint]:
    """Read this project's entry points from pyproject.toml where it runs without being installed."""
    try:
        distribution("rosebench")
    except PackageNotFoundError:
        content = (Path(__file__).parents[1] / "pyproject.toml").read_text()
        points = tomllib.loads(content)["project"]["entry-points"].get(group, {})
        return [EntryPoint(name, value, group) for name, value in points.items()]
    return ()


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
