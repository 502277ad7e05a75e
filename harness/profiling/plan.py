"""Captures of a profile stage: which engines under which tools, and those that a run already has."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.engines.base import EngineVariant
from harness.engines.local import CaptureRequest, EngineProfiler, LocalEngine
from harness.engines.selection import make_engine_variants
from harness.errors import BenchError
from harness.profiling.artifacts import read_manifest
from harness.profiling.py_spy import INSTALL, find_py_spy
from harness.profiling.subject import Subject
from harness.runs.events import CaptureSkipped, Notify
from harness.schema.online_settings import OnlineSettings
from harness.schema.profile import Tool, Tools
from harness.schema.results import OnlineResults


@dataclass(frozen=True)
class ProfileOptions:
    """Extent of a capture. `nsys` is the program; None: looked for. `max_bytes` is of one file."""

    tools: Tools = "torch"
    steps: int = 64
    stacks: bool = False
    nsys: Path | None = None
    max_bytes: int = 512 * 1024**2


@dataclass(frozen=True)
class PlannedCapture:
    """One engine under one tool, whose files go to `folder`.

    `profiler` is the error where the engine cannot say how it is profiled.
    """

    engine_variant: EngineVariant
    engine: LocalEngine
    tool: Tool
    name: str
    folder: Path
    profiler: EngineProfiler | BenchError


def each(tools: Tools) -> tuple[Tool, ...]:
    """One by one."""
    return ("torch", "nsys") if tools == "both" else (tools,)


def plan_captures(subject: Subject, options: ProfileOptions, notify: Notify) -> list[PlannedCapture]:
    """Every engine under every tool asked for; those without a profiler, and nsys where there is no GPU, are
    left out, and `notify` gets the reason."""
    captures = []
    for engine_variant in subject.engine_variants:
        for tool in each(options.tools):
            planned = _plan(subject, options, engine_variant, tool)
            if isinstance(planned, str):
                notify(CaptureSkipped(engine_variant.label, tool, planned))
            else:
                captures.append(planned)
    return captures


def needed_instead(subject: Subject, options: ProfileOptions) -> str:
    """The hint where nothing can be captured."""
    if options.tools == "nsys" and not _on_gpu(subject.resolved.settings):
        command = f"bench profile {shlex.quote(str(subject.folder))} --tool torch"
        return f"torch's profiler needs no GPU: `{command}`"
    return "profile a run of an engine that has a profiler"


def unprofiled(folder: Path, results: OnlineResults, tools: Tools) -> list[str]:
    """The engines of a run, NAME or NAME@VARIANT, of which a capture is missing or failed.

    Without a GPU `both` is torch's alone.

    Raises:
        UsageError: the manifest that is there cannot be read.
    """
    manifest = read_manifest(folder)
    settings = results.meta.settings
    needed: Tools = "torch" if tools == "both" and not _on_gpu(settings) else tools
    runs = [run for run in manifest.runs if run.error is None] if manifest else []
    had = {(run.label, "torch" if run.tool == "py-spy" else run.tool) for run in runs}
    absent = {fault.label for fault in results.skipped if fault.is_whole_engine}
    missing = [
        str(variant.ref)
        for variant in make_engine_variants(settings)
        if variant.label not in absent and {(variant.label, tool) for tool in each(needed)} - had
    ]
    return list(dict.fromkeys(missing))


def _name(engine_variant: EngineVariant, engine_variants: Sequence[EngineVariant]) -> str:
    """Name folder and log: `roseinfer`, `roseinfer.VARIANT`; of the sides of an A/A run with A or B."""
    name = str(engine_variant.ref).replace("@", ".")
    sides = [side.label for side in engine_variants if side.ref == engine_variant.ref]
    return name if len(sides) == 1 else f"{name}.{'AB'[sides.index(engine_variant.label)]}"


def _plan(
    subject: Subject, options: ProfileOptions, engine_variant: EngineVariant, tool: Tool
) -> PlannedCapture | str:
    """One capture, or why an engine has no profiler that can be used here."""
    engine = subject.resolved.engines[engine_variant.label]
    if not isinstance(engine, LocalEngine):
        return "a server that was not started here is not profiled"
    if tool == "nsys" and not _on_gpu(subject.resolved.settings):
        return "skipped, because this run uses no GPU"
    name = _name(engine_variant, subject.engine_variants)
    profiler: EngineProfiler | BenchError | None
    folder = subject.folder.resolve() / "profiles" / tool / name
    try:
        request = CaptureRequest(tool, folder, options.steps, options.stacks)
        profiler = EngineProfiler() if tool == "py-spy" else engine.profiler(engine.installed(), request)
    except BenchError as fault:
        profiler = fault
    if profiler is None:
        if engine.in_python and find_py_spy() is None:
            return f"{engine.display} has no profiler of its own; with py-spy ({INSTALL}) it is sampled"
        if engine.in_python:
            return _plan(subject, options, engine_variant, "py-spy")
        other = "; --tool nsys profiles it" if _on_gpu(subject.resolved.settings) else ""
        return f"{engine.display} has no profiler of its own{other}"
    return PlannedCapture(engine_variant, engine, tool, name, folder, profiler)


def _on_gpu(settings: OnlineSettings) -> bool:
    """Tell whether the engines compute on GPUs, which nsys needs."""
    return settings.device == "cuda"
