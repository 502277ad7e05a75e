"""The profile stage: each engine in a server of its own under each tool, and the manifest of what came."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.engines.base import Encoder, Launch, Server
from harness.engines.local import EngineProfiler
from harness.errors import BenchError, BusyServerError, CleanupError, EngineError
from harness.files import write_json
from harness.loadgen.load_plan import LoadPlan, WireRequest
from harness.loadgen.run_load import run_load
from harness.profiling.artifacts import collect, files, name_torch_traces, read_manifest, remove_oversized
from harness.profiling.capture import RouteWindow, Window, capture, settle
from harness.profiling.nsys import NsysSession, find_nsys
from harness.profiling.plan import PlannedCapture, ProfileOptions, each, needed_instead, plan_captures
from harness.profiling.py_spy import StackSampler
from harness.profiling.subject import Subject
from harness.runs.events import CaptureDone, CaptureStarting, CaptureWaiting, Notify
from harness.runs.folder import MANIFEST
from harness.schema.profile import ProfileManifest, ProfileRun, Tool

#: Seconds before a busy engine is asked again.
WAITS_S = (5.0, 15.0, 45.0)


def profile_run(subject: Subject, options: ProfileOptions, notify: Notify) -> ProfileManifest:
    """Profile every engine of a run with every tool asked for; what fails is an `error` of the manifest.

    Engines without a profiler are left out, and nsys where no GPU is used. Captures of the same engine and
    tool that the run already has are replaced, the others kept.

    Raises:
        UsageError: the manifest that is there cannot be read.
        EngineError: nothing can be captured, and the run has no capture by a tool that was asked for.
        CleanupError: an engine could not be ended.
    """
    manifest = read_manifest(subject.folder) or ProfileManifest(meta=subject.info)
    captures = plan_captures(subject, options, notify)
    tools = (*each(options.tools), "py-spy")
    had = [run for run in manifest.runs if run.tool in tools and run.error is None]
    if not captures and not had:
        raise EngineError("nothing could be profiled", needed_instead(subject, options))
    for planned in captures:
        with _replacing(planned.folder):
            run = _profile(subject, options, planned, notify)
            kept = [old for old in manifest.runs if (old.label, old.tool) != (run.label, run.tool)]
            manifest = manifest.model_copy(update={"runs": [*kept, run]})
            write_json(subject.folder / MANIFEST, manifest)
        notify(CaptureDone(run))
    return manifest


@contextmanager
def _replacing(folder: Path) -> Iterator[None]:
    """Makes a folder empty. What was in it comes back where the `with` is left early, as by Ctrl-C."""
    old = folder.with_name(f".{folder.name}.before")
    if folder.exists() and not old.exists():  # else of a capture that was killed
        folder.rename(old)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield
    except BaseException:
        if old.exists():
            shutil.rmtree(folder, ignore_errors=True)
            old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _profile(
    subject: Subject, options: ProfileOptions, planned: PlannedCapture, notify: Notify
) -> ProfileRun:
    """One engine under one tool."""
    engine_variant, tool, folder = planned.engine_variant, planned.tool, planned.folder
    run = subject.folder.resolve()
    log = run / "logs" / f"{planned.name}.{tool}.log"
    level, load, began = subject.level(engine_variant), subject.load, time.monotonic()
    starting = CaptureStarting(engine_variant.label, tool, level, log)
    stage = _Stage(subject, options, planned, notify, starting)
    error = None
    try:
        stage.run()
    except CleanupError:
        raise
    except BenchError as fault:
        error = str(fault)
    error = remove_oversized(folder, options.max_bytes) or error
    return ProfileRun(
        tool=tool,
        **engine_variant.identity,
        cmd=stage.cmd,
        env=stage.env,
        load=load if subject.info.kind == "online" else None,
        n=stage.n,
        level=level,
        steps=options.steps,
        output_dir=str(folder.relative_to(run)),
        artifacts=collect(run, folder),
        log_path=str(log.relative_to(run)),
        wall_s=round(time.monotonic() - began, 3),
        error=error,
    )


@dataclass
class _Stage:
    """One capture. `cmd`, `env` and `n` are known as soon as the server starts."""

    subject: Subject
    options: ProfileOptions
    planned: PlannedCapture
    notify: Notify
    starting: CaptureStarting
    cmd: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    n: int = 0

    def run(self) -> None:
        """Raises BenchError."""
        engine_variant, resolved = self.planned.engine_variant, self.subject.resolved
        engine, profiler = self.planned.engine, self.planned.profiler
        if isinstance(profiler, BenchError):
            raise profiler
        settings = resolved.engine_settings(engine_variant)
        session = None
        if self.planned.tool == "nsys":
            session = NsysSession(find_nsys(self.options.nsys), self.planned.folder / "nsys")

        def change(launch: Launch) -> Launch:
            profiled = replace(
                launch, argv=(*launch.argv, *profiler.args), env={**launch.env, **profiler.env}
            )
            profiled = session.around(profiled) if session else profiled
            self.cmd, self.env = list(profiled.argv), dict(profiled.env)
            return profiled

        self.notify(self.starting)
        with engine.open(settings, self.starting.log, change) as server:
            usual = resolved.request_settings(engine_variant, server.served_name)
            completions = replace(usual, endpoint="completions")  # chats compute the same
            encode = engine.encoder(completions)
            self._capture_once_free(lambda: self._capture(server, encode, profiler, session))
        if session is not None:
            session.export()
        elif self.planned.tool == "torch":
            name_torch_traces(self.planned.folder)

    def _capture_once_free(self, capture_now: Callable[[], None]) -> None:
        """Capture, again after a while where the engine has no time for its profiler."""
        for wait_s in WAITS_S:
            try:
                return capture_now()
            except BusyServerError as error:
                self.notify(CaptureWaiting(self.starting.label, error.message, wait_s))
                time.sleep(wait_s)
        return capture_now()

    def _capture(
        self, server: Server, encode: Encoder, profiler: EngineProfiler, session: NsysSession | None
    ) -> None:
        resolved, level = self.subject.resolved, self.subject.level(self.planned.engine_variant)
        requests = self.subject.sample(self.planned.engine_variant)
        self.n = len(requests)
        for wave in resolved.workload.warmup_waves(resolved.settings.seed):
            wire = [WireRequest(r.index, None, encode(r)) for r in wave]
            run_load(LoadPlan(server.target, wire, len(wire)), start_delay_s=0.1)
            server.check()
        routes = RouteWindow(server.target, profiler)
        windows: list[Window] = [session, routes] if session else [routes]
        if self.planned.tool == "py-spy":
            windows = [StackSampler(server.pids, self.planned.folder)]
        own_end = self.planned.tool == "torch"
        capture(
            server,
            requests,
            encode,
            level.in_flight,
            windows,
            lambda: own_end and bool(files(self.planned.folder)),
            _seconds(self.planned.tool, self.options.steps, level.step_ms),
            resolved.cpus.client,
        )
        if own_end:
            settle(self.planned.folder)


def _seconds(tool: Tool, steps: int, step_ms: float | None) -> float:
    """Return the seconds that a capture may last. nsys and py-spy record so long; torch's profiler ends by
    itself after its steps, which it slows down, and takes its time to begin."""
    if tool == "py-spy":
        return min(max(steps * step_ms / 1e3, 5.0), 20.0) if step_ms else 10.0
    if tool == "nsys":
        return min(max(1.5 * steps * step_ms / 1e3, 0.2), 10.0) if step_ms else 1.0
    return min(max(6.0 * steps * step_ms / 1e3, 20.0), 60.0) if step_ms else 60.0
