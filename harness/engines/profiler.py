"""Profilers of engines: options of the server, and routes that start and stop them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from harness.schema.profile import Tool


@dataclass(frozen=True)
class CaptureRequest:
    """A capture of `steps` engine steps, with its torch profiler into `folder` (absolute), or with marks
    and windows for nsys."""

    tool: Tool
    folder: Path
    steps: int
    stacks: bool = False


@dataclass(frozen=True)
class Route:
    """A POST request, with a JSON body or none."""

    path: str
    body: JsonValue = None


@dataclass(frozen=True)
class EngineProfiler:
    """`args` and `env` are added to the server's. Without routes the profiler needs no start; with `start`
    alone it stops by itself after the wanted number of steps."""

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    start: Route | None = None
    stop: Route | None = None
