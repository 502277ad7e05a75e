"""Engines, trace formats and metrics of installed packages, found through their entry points."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from traceback import extract_tb

from harness.errors import BenchError, EngineError, UsageError

OURS = "rosebench"


def find_plugins(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group, such as `rosebench.engines`, by name in alphabetical order.

    Raises:
        UsageError: Two packages use one name.
    """
    points = list(entry_points(group=group))
    if (checkout := _of_checkout(group)) is not None:
        points = [*checkout, *(point for point in points if point.dist is None or point.dist.name != OURS)]
    plugins: dict[str, EntryPoint] = {}
    for point in sorted(points, key=lambda point: (point.name, point.value)):
        other = plugins.setdefault(point.name, point)
        if other.value != point.value:
            raise UsageError(
                f"{describe(point)} has the name of {describe(other)}",
                "uninstall its package, or give it another name",
            )
    return plugins


def _of_checkout(group: str) -> list[EntryPoint] | None:
    """Read this project's entry points from the pyproject.toml of a checkout; None in an installed package.

    A checkout may have other modules than the version whose metadata is installed.
    """
    file = Path(__file__).parents[1] / "pyproject.toml"
    project = tomllib.loads(file.read_text()).get("project", {}) if file.is_file() else {}
    if project.get("name") != OURS:
        return None
    return [EntryPoint(name, value, group) for name, value in project["entry-points"].get(group, {}).items()]


def load_plugin(point: EntryPoint) -> object:
    """Return the object that an entry point names.

    Raises:
        UsageError: It cannot be imported.
    """
    try:
        plugin: object = point.load()
    except Exception as error:  # whatever somebody else's module raises
        raise UsageError(
            f"{describe(point)} cannot be loaded: {error}", "correct or uninstall its package"
        ) from error
    return plugin


@contextmanager
def adapter_call(engine: str, method: str) -> Iterator[None]:
    """Guard a call of an engine's adapter, which may be somebody else's.

    Raises:
        EngineError: It raises anything but a BenchError. The message names its line.
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
    """Return `toy (toy_engine:Toy of toy-engine)`, for messages."""
    origin = f" of {point.dist.name}" if point.dist is not None else ""
    return f"{point.name} ({point.value}{origin})"
