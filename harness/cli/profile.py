"""`bench profile RUN` and `bench profile diff A B`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from harness.cli.command_line import command_line
from harness.cli.faults import save_first
from harness.cli.progress import Display, make_display
from harness.cli.terminal import Terminal, echo
from harness.cli.terminal_table import TerminalTable
from harness.cli.trust import Trust, check_run
from harness.errors import BenchError, EngineError, InterruptedRunError, UsageError
from harness.profiling.analysis import analyse
from harness.profiling.artifacts import read_manifest, read_profiles
from harness.profiling.plan import ProfileOptions
from harness.profiling.stage import profile_run
from harness.profiling.subject import begin_run, open_subject
from harness.report.render import write_outputs
from harness.report.tables.profiles import difference, figure_tables, gap_table
from harness.runs.events import CaptureDone, CaptureSkipped, CaptureStarting, CaptureWaiting, Event, Notify
from harness.runs.folder import MANIFEST, check_folder, lock_run, results_name
from harness.runs.reader import Run, load_run
from harness.schema.base import first_fault, split_option
from harness.schema.load import ClosedLoop, Load, RequestRate, TraceLoad
from harness.schema.online_settings import OnlineSettings
from harness.schema.profile import ProfileFigures, ProfileRun, Tools
from harness.schema.setting_types import EngineRef

Scale = Annotated[float | None, typer.Option(help="scale of the run; default: the heaviest", metavar="S")]
Concurrency = Annotated[
    int | None, typer.Option(help="level of a closed loop; default: the highest", metavar="K")
]
Rate = Annotated[
    float | None, typer.Option(help="rate of the run, in requests/s; default: the highest", metavar="R")
]
Engines = Annotated[
    str | None, typer.Option(help="engines of the run; default: all", metavar="NAME[@VARIANT],…")
]
Tool = Annotated[Tools, typer.Option(help="which profiler")]
Steps = Annotated[int, typer.Option(min=2, help="engine steps to capture", metavar="N")]
Stacks = Annotated[bool, typer.Option("--stacks", help="record Python stacks: large files, slow to write")]
Nsys = Annotated[
    Path | None, typer.Option(help="path of the nsys program; default: searched", metavar="PATH")
]
MaxMb = Annotated[int, typer.Option(min=1, help="remove files larger than this, in MB", metavar="N")]
Quiet = Annotated[bool, typer.Option("--quiet", help="print nothing but the manifest's path")]
PERFETTO = "https://ui.perfetto.dev"


class _RunByDefault(typer.core.TyperGroup):
    """`bench profile RUN` means `bench profile run RUN`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_RunByDefault,
    no_args_is_help=True,
    help="Profile the engines of a run (`bench profile RUN`), or compare two profiles (`… diff A B`).",
)


@app.command("run")
def run(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="folder of a run")],
    tool: Tool = "torch",
    scale: Scale = None,
    concurrency: Concurrency = None,
    request_rate: Rate = None,
    engines: Engines = None,
    steps: Steps = ProfileOptions.steps,
    stacks: Stacks = False,
    nsys: Nsys = None,
    max_mb: MaxMb = ProfileOptions.max_bytes >> 20,
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Profile the engines of a run under a sample of its load. The figures of the benchmark do not change."""
    kinds: list[tuple[str, type[Load], str, float | None]] = [
        ("--scale", TraceLoad, "scale", scale),
        ("--concurrency", ClosedLoop, "concurrency", concurrency),
        ("--request-rate", RequestRate, "req_per_s", request_rate),
    ]
    loads = [_load(option, kind, {key: value}) for option, kind, key, value in kinds if value is not None]
    if len(loads) > 1:
        raise UsageError(
            "--scale is for a trace, --concurrency for a closed loop, --request-rate for a rate",
            "use one of them",
        )
    load = loads[0] if loads else None
    check_run(folder, trust)
    options = ProfileOptions(tool, steps, stacks, nsys, max_mb << 20)
    with make_display(quiet) as display:
        chosen = None if engines is None else split_option("--engines", engines)
        profile_folder(folder, load, options, display, chosen)
    echo(folder / MANIFEST)


def _load(option: str, kind: type[Load], value: dict[str, float]) -> Load:
    """Return a load as an option names it. Raises UsageError."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        fault = first_fault(error).partition(": ")[2]
        raise UsageError(f"{option}: {fault}", "see `bench profile run --help`") from None


@dataclass
class _Captures:
    """Shows the events of a profile, and keeps the captures that have ended."""

    folder: Path
    display: Display
    done: list[ProfileRun] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        match event:
            case CaptureSkipped(label, tool, reason):
                self.display.line(f"{label}: no {tool} profile: {reason}")
            case CaptureStarting(label, tool, level, log):
                self.display.line(f"{label}: {tool} profile with {level.in_flight} in flight; log: {log}")
            case CaptureWaiting(label, reason, seconds):
                self.display.line(f"{label} is busy ({reason}): trying again in {seconds:.0f} s")
            case CaptureDone(capture):
                self.done.append(capture)
                self._show(capture)
            case _:
                self.display.show(event)

    def _show(self, capture: ProfileRun) -> None:
        if capture.error is not None:
            self.display.line(f"{capture.label}: no {capture.tool} profile: {capture.error}")
            return
        size = sum(artifact.bytes for artifact in capture.artifacts) / 1e6
        self.display.line(f"{capture.label}: {capture.tool} profile, {size:.1f} MB in {capture.wall_s:.0f} s")
        for artifact in capture.artifacts:
            if artifact.kind == "torch trace":
                self.display.line(f"  open {self.folder / artifact.path} in {PERFETTO}")


def profile_folder(
    folder: Path,
    load: Load | None,
    options: ProfileOptions,
    display: Display,
    engines: Sequence[str] | None = None,
    measured: Run | None = None,
) -> None:
    """Profile a run, or some of its engines: capture, read the figures, render the report again.

    Args:
        measured: The run with its results, where this command has measured it; None: they are read.

    Raises:
        UsageError: another process measures or profiles the run.
        EngineError: a capture failed, the others are kept; or no engine has a profiler.
    """
    watcher = _Captures(folder, display)
    save_first()
    with lock_run(folder):
        profile_run(open_subject(folder, load, watcher, engines), options, watcher)
        profiles = analyse(folder)
        if measured is None and results_name(folder) is not None:
            measured = load_run(folder, trust=True)
        if measured is not None:
            write_outputs(measured)
    display.print_tables([*figure_tables(profiles), *map(gap_table, profiles.gaps)])
    for path, reason in profiles.unread.items():
        display.line(f"not read: {path}: {reason}")
    if failed := [capture for capture in watcher.done if capture.error is not None]:
        share = f"{len(failed)} of {len(watcher.done)} captures failed"
        what = "nothing could be profiled" if len(failed) == len(watcher.done) else share
        logs = [str(log) for capture in failed if (log := folder / capture.log_path).is_file()]
        raise EngineError(what, f"see {', '.join(logs)}" if logs else f"{folder / MANIFEST} says why")


def profile_after(run: Run, tools: Tools, display: Display, engines: Sequence[str]) -> BenchError | None:
    """Profile after a benchmark. Returns the error, to be raised after the results are printed."""
    try:
        profile_folder(run.path, None, ProfileOptions(tools), display, engines, run)
    except BenchError as error:
        return error
    except KeyboardInterrupt:
        hint = f"profile it with `bench profile {shlex.quote(str(run.path))} --tool {tools}`"
        return InterruptedRunError("interrupted; the run is measured", hint)
    return None


def profile_only(settings: OnlineSettings, display: Display, notify: Notify) -> None:
    """Profile without measuring; prints the manifest's path."""
    folder = begin_run(settings, command_line(), notify)
    check_run(folder, trust=True)
    profile_folder(folder, None, ProfileOptions(settings.profile or "torch"), display)
    echo(folder / MANIFEST)


@app.command("diff")
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="folder of a profiled run")],
    b: Annotated[Path, typer.Argument(metavar="B", help="folder of another profiled run, or the same")],
    engine_a: Annotated[
        str | None, typer.Option(help="engine of A; default: its first", metavar="NAME[@VARIANT]")
    ] = None,
    engine_b: Annotated[
        str | None, typer.Option(help="engine of B; default: its first", metavar="NAME[@VARIANT]")
    ] = None,
) -> None:
    """Compare two profiles part by part.

    The time of a step in A, in B, and the difference.
    """
    found_a, found_b = _figures(a), _figures(b)
    if a.resolve() == b.resolve():
        engine_a, engine_b = _two_of(found_a, a, engine_a, engine_b)
    console = Terminal(soft_wrap=True)
    pairs = [
        (figures_a, figures_b)
        for figures_a in _of(found_a, engine_a, a)
        for figures_b in _of(found_b, engine_b, b)
        if figures_a.tool == figures_b.tool
    ]
    if not pairs:
        raise UsageError("A and B were not profiled with the same tool", "profile both with --tool torch")
    for figures_a, figures_b in pairs:
        table = difference(figures_a, figures_b)
        console.print(TerminalTable(table))
        for note in [*table.notes, *_differing(_capture(a, figures_a), _capture(b, figures_b))]:
            console.print(note)


#: Settings without which the same engine's steps are not of the same size.
_SIZES = ("model", "dtype", "cpu_threads", "tensor_parallel_size", "prefix_cache", "input_len", "output_len")


def _capture(run: Path, figures: ProfileFigures) -> dict[str, object]:
    """Return the settings and load of a profile by name; {} if the run does not record them."""
    if (manifest := read_manifest(run)) is None:
        return {}
    settings = {name: getattr(manifest.meta.settings, name, None) for name in _SIZES}
    key = figures.label, figures.tool
    captures = (capture for capture in manifest.runs if (capture.label, capture.tool) == key)
    return next(({"requests in flight": capture.level.in_flight} | settings for capture in captures), {})


def _differing(a: dict[str, object], b: dict[str, object]) -> list[str]:
    """A warning of each way in which two captures are not of the same work."""
    names = [name for name in a if name in b and a[name] != b[name]]
    return [f"warning: {name.replace('_', ' ')}: {a[name]} in A, {b[name]} in B" for name in names]


def _figures(run: Path) -> list[ProfileFigures]:
    check_folder(run)
    profiles = read_profiles(run)
    if profiles is None or not profiles.figures:
        raise UsageError(f"{run} has no profile", f"run `bench profile {run}`")
    return profiles.figures


def _two_of(
    figures: list[ProfileFigures], run: Path, engine_a: str | None, engine_b: str | None
) -> tuple[str, str]:
    """Two engines of one run: those that are named, else the first that are not."""
    labels = list(dict.fromkeys(profile.label for profile in figures))
    named = [name and _of(figures, name, run)[0].label for name in (engine_a, engine_b)]
    others = iter(label for label in labels if label not in named)
    first, second = (label or next(others, None) for label in named)
    if first is None or second is None:
        raise UsageError(f"{run} has one engine, {labels[0]}", "name another run")
    if first == second:
        raise UsageError(f"A and B are both {first} of {run}", "name another engine or another run")
    return first, second


def _of(figures: list[ProfileFigures], name: str | None, run: Path) -> list[ProfileFigures]:
    """Return the figures of an engine by its label or `NAME[@VARIANT]`; without a name, of the first."""
    labels = list(dict.fromkeys(profile.label for profile in figures))
    label = name or labels[0]
    if label not in labels and (manifest := read_manifest(run)):
        refs = {str(EngineRef(name=it.engine, variant=it.variant)): it.label for it in manifest.runs}
        label = refs.get(label, label)
    matching = [profile for profile in figures if profile.label == label]
    if not matching:
        raise UsageError(f"{run} has no profile of {name!r}", f"choose one of {', '.join(labels)}")
    return matching
