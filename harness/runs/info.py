"""What a run says of itself: settings, machine, versions."""

from __future__ import annotations

import platform
from collections.abc import Iterable

from pydantic import JsonValue

import harness
from harness.cluster.testbed import Machines
from harness.engines.base import Installation
from harness.engines.registry import LOCAL
from harness.files import now
from harness.schema.machines import Calibration
from harness.schema.online_settings import OnlineSettings
from harness.schema.run_info import RunInfo, TraceRecord, Versions
from harness.telemetry.machine import environment
from harness.telemetry.revision import git_revision, source_hash


def make_info(
    settings: OnlineSettings,
    command: list[str],
    found: Iterable[Installation],
    trace: TraceRecord | None = None,
    calibration: Calibration | None = None,
    machines: Machines | None = None,
) -> RunInfo:
    """`run.json` of a run that begins now, on these machines; None: on this one."""
    machine, hosts = (environment(), ()) if machines is None else (machines.environment(), machines.hosts)
    calibrated: dict[str, JsonValue] = {}
    if settings.num_prompts is None:
        calibrated["calibration"] = (
            "none: cells are not judged by what the client sustains; `bench calibrate` measures it"
            if calibration is None
            else calibration.model_dump(mode="json")
        )
    return RunInfo(
        kind="online" if settings.num_prompts is None else "offline",
        created=now(),
        command=command,
        settings=settings,
        environment=machine | calibrated,
        versions=versions(found),
        trace=trace,
        hosts=list(hosts),
    )


def versions(installations: Iterable[Installation]) -> Versions:
    """Versions of the engines of a run; torch's is that of the first engine that has it."""
    engines = list(installations)
    shared = {
        name: next((e.versions[name] for e in engines if name in e.versions), None)
        for name in ("torch", "transformers")
    }
    names = {name: engine.version_name or name for name, engine in LOCAL.items()}
    return Versions(
        git_rev=git_revision(),
        source=source_hash(),
        rosebench=harness.__version__,
        python=platform.python_version(),
        **dict.fromkeys(names.values()) | shared | {names[e.engine]: e.version for e in engines},
    )
