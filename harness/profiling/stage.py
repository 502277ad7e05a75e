"""The profile stage: each engine in a server of its own under each tool, and the manifest of what came."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.engines.base import Encoder, Launch, Server
from harness.engines.local import EngineProfiler
from harness.errors import BenchError, BusyServerError, CleanupError, EngineError, UsageError
from harness.files import write_json
from harness.loadgen.load_plan import LoadPlan, WireRequest
from harness.loadgen.run_load import run_load
from harness.profiling.artifacts import collect, files, name_torch_traces, read_manifest, remove_oversized
from harness.profiling.capture import RouteWindow, Window, capture, settle
from harness.profiling.plan import PlannedCapture, ProfileOptions, each, needed_instead, plan_captures
from harness.profiling.py_spy import StackSampler
from harness.profiling.subject import Subject
from harness.runs.events import CaptureDone, CaptureStarting, CaptureWaiting, Notify
from harness.runs.folder import MANIFEST
from harness.schema.profile import ProfileManifest, ProfileRun, Tool

#: Places of a CUDA toolkit, of Nsight Systems and of Nsight Compute, newest first where several match.
PLACES = (
    "/usr/local/cuda*/bin/nsys",
    "/opt/nvidia/nsight-systems*/*/target-linux-x64/nsys",
    "/opt/nvidia/nsight-systems*/*/bin/nsys",
    "/opt/nvidia/nsight-compute*/**/host/target-linux-*/nsys",
    "/usr/local/cuda*/nsight-compute-*/host/target-linux-*/nsys",
    "/usr/local/NVIDIA-Nsight-Compute*/host/target-linux-*/nsys",
)
#: What its importer loads and minimal systems lack.
LIBRARIES = ("libdw.so.1", "libelf.so.1")
#: CUDA and NVTX alone, node by node of CUDA graphs, no sampling and no context switches: small files.
TRACE = ("-t", "cuda,nvtx", "--cuda-graph-trace=node", "--trace-fork-before-exec=true")
QUIET = ("-s", "none", "--cpuctxsw=none")
STATS = ("cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum", "nvtx_sum")
TIMEOUT_S = 300.0


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
    """One capture. `cmd`, `env` and `n` are known as soon as the server starts. A busy engine is tried again
    after each of `waits_s`."""

    subject: Subject
    options: ProfileOptions
    planned: PlannedCapture
    notify: Notify
    starting: CaptureStarting
    cmd: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    n: int = 0
    waits_s: Sequence[float] = (5.0, 15.0, 45.0)

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
        for wait_s in self.waits_s:
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
            settle(self.planned.folder, profiler.settled_s)


def _seconds(tool: Tool, steps: int, step_ms: float | None) -> float:
    """Return the seconds that a capture may last. nsys and py-spy record so long; torch's profiler ends by
    itself after its steps, which it slows down, and takes its time to begin."""
    if tool == "py-spy":
        return min(max(steps * step_ms / 1e3, 5.0), 20.0) if step_ms else 10.0
    if tool == "nsys":
        return min(max(1.5 * steps * step_ms / 1e3, 0.2), 10.0) if step_ms else 1.0
    return min(max(6.0 * steps * step_ms / 1e3, 20.0), 60.0) if step_ms else 60.0


def find_nsys(
    named: Path | None = None, places: Iterable[str] = PLACES, libraries: Iterable[str] = LIBRARIES
) -> Path:
    """The `nsys` to use: the one named, else on PATH, else in a CUDA or Nsight folder.

    Raises:
        UsageError: there is none, it does not start, or one of the `libraries` that it needs is missing.
    """
    if named is not None and not named.is_file():
        raise UsageError(f"{named} is no nsys", "name the program itself, such as …/target-linux-x64/nsys")
    on_path = shutil.which("nsys")
    programs = [named] if named else [Path(on_path)] if on_path else list(_search(places))
    if not programs:
        raise UsageError(
            "nsys is not on PATH nor in a CUDA or Nsight folder",
            "install Nsight Systems, or name it with --nsys; --tool torch needs none",
        )
    if missing := [name for name in libraries if not _loads(name)]:
        raise UsageError(
            f"{' and '.join(missing)} missing: nsys could record but not write its report",
            "install libdw1 and libelf1, or unpack them and name their folder in LD_LIBRARY_PATH",
        )
    _run(programs[0], "--version")
    return programs[0]


def _search(places: Iterable[str]) -> Iterable[Path]:
    for place in places:
        yield from sorted(Path("/").glob(place.lstrip("/")), reverse=True)


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


@dataclass(frozen=True)
class NsysSession:
    """One server under nsys, of Nsight Systems: nothing is recorded but between `start` and `stop`."""

    nsys: Path
    output: Path
    name: str = field(default_factory=lambda: f"bench-{os.getpid()}-{uuid.uuid4().hex[:8]}")

    def around(self, launch: Launch) -> Launch:
        """The same server as a child of nsys, which sees its worker processes too."""
        prefix = (str(self.nsys), "launch", f"--session-new={self.name}", *TRACE)
        return replace(launch, argv=(*prefix, *launch.argv))

    def start(self) -> None:
        """Begin to record. Raises EngineError with what nsys said."""
        _run(self.nsys, "start", f"--session={self.name}", "-o", str(self.output), "-f", "true", *QUIET)

    def stop(self) -> None:
        """End the recording and wait for its report. Raises EngineError with what nsys said."""
        _run(self.nsys, "stop", f"--session={self.name}")

    def export(self) -> None:
        """Write the report's SQLite export and its summaries next to it. Raises EngineError."""
        report = self.output.with_suffix(".nsys-rep")
        if not report.is_file():
            raise EngineError(f"nsys wrote no {report.name}", "see the engine's log")
        sqlite = self.output.with_suffix(".sqlite")
        _run(
            self.nsys, "export", "--type", "sqlite", "--force-overwrite=true", "-o", str(sqlite), str(report)
        )
        reports = [word for name in STATS for word in ("--report", name)]
        stats = (*reports, "--format", "csv", "--force-overwrite=true", "--output", str(self.output))
        _run(self.nsys, "stats", *stats, str(sqlite))


def _run(nsys: Path, *arguments: str) -> None:
    try:
        done = subprocess.run(
            [str(nsys), *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"{nsys} {arguments[0]} failed: {error}", "see its own documentation") from None
    if done.returncode:
        output = " ".join((done.stderr or done.stdout).split())
        raise EngineError(f"{nsys} {arguments[0]} failed: {output[-500:]}", "see its own documentation")
