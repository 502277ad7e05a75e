"""`bench offline`: a fixed batch through every engine, a fresh process for every measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from harness.engines.base import EngineSettings, Installation
from harness.engines.parallel import check_gpus
from harness.engines.selection import make_engine_variants
from harness.errors import BenchError, CleanupError, UsageError, is_interruption
from harness.runs.batch.batch_run import BatchRun
from harness.runs.batch.entries import Entry, make_entries
from harness.runs.batch.measured import result
from harness.runs.batch.through_server import through_server
from harness.runs.batch.through_worker import Batch, through_worker
from harness.runs.events import BatchDone, BatchStarting, EngineSkipped, Notify, Reporting, Started
from harness.runs.folder import lock_run, log_file, make_folder
from harness.runs.info import offline_info
from harness.runs.resolved import engine_settings, resolve_common
from harness.runs.schedule import turns
from harness.schema.results import OfflineResults, Skipped
from harness.schema.settings import OfflineSettings
from harness.telemetry.cell_monitor import CellMonitor
from harness.telemetry.machine import environment
from harness.workload import warmup
from harness.workload.content import SyntheticContent, check_lengths


@dataclass(frozen=True)
class _Resolved:
    """An offline run, ready to start. `launches` is what each entry is started with, `client` the cores of
    the client."""

    settings: OfflineSettings
    launches: dict[Entry, EngineSettings]
    missing: list[Skipped]
    client: Sequence[int] | None

    @property
    def found(self) -> list[Installation]:
        return [entry.engine.installed() for entry in self.launches]


def run_offline(settings: OfflineSettings, command: list[str], notify: Notify) -> tuple[Path, OfflineResults]:
    """Measure every engine. Returns the run's folder and its results.

    A measurement is in the journal before the next one begins, and the results file is written after each. An
    engine that fails is in `skipped` of that file with the repeat; one that is not installed, without.

    Args:
        command: The command line, to be repeated.
        notify: Called with each event.

    Raises:
        UsageError: an engine, variant, model or length that cannot be, or no engine is there.
        BenchError: Nothing could be measured, or an engine could not be ended.
    """
    resolved = _resolve(settings)
    info = offline_info(resolved.settings, command, resolved.found)
    planned = turns(list(resolved.launches), resolved.settings)
    info.order = [(entry.label, repeat) for entry, repeat in planned]
    folder = make_folder(settings.out, "offline")
    with lock_run(folder):
        run = BatchRun.create(folder, info, resolved.missing)
        return folder, _complete(run, resolved, notify)


def resume_offline(folder: Path, notify: Notify) -> tuple[Path, OfflineResults]:
    """Measure what the run in `folder` has not finished; nothing is measured twice.

    A measurement that failed is tried again. Where nothing is left, no engine and no GPU is needed.

    Raises:
        UsageError: The folder holds no run, somebody is at it, or an engine, the code, the machine or the
            model is not as it was when the run began.
        BenchError: Nothing could be measured, or an engine could not be ended.
    """
    with lock_run(folder):
        run = BatchRun.open(folder)
        resolved = None
        if not run.is_measured:
            resolved = _resolve(run.settings)
            run.check_unchanged(resolved.missing, resolved.found, environment())
            here = {entry.label for entry in resolved.launches}
            if gone := next((label for label, _ in run.info.order if label not in here), None):
                raise UsageError(
                    f"{gone} is part of the run, and its variant is not of offline runs any more",
                    "restore the variants of the engines, or start a new run",
                )
        return folder, _complete(run, resolved, notify)


def batches_so_far(folder: Path) -> OfflineResults | None:
    """Write the results of what an interrupted run has measured; None where that is nothing yet.

    Raises:
        UsageError: The folder holds no run, or another process works on it.
    """
    with lock_run(folder):
        run = BatchRun.open(folder)
        return run.write_results() if run.done else None


def _resolve(settings: OfflineSettings) -> _Resolved:
    """Look everything up before anything starts.

    Raises:
        UsageError: A setting cannot work here, or no engine that was asked for is there.
    """
    mixed = not all(isinstance(lengths, int) for lengths in (settings.input_len, settings.output_len))
    entries, missing = make_entries(make_engine_variants(settings), mixed=mixed)
    if not entries:
        reasons = "; ".join(f"{skip.label}: {skip.reason}" for skip in missing)
        raise UsageError(
            f"no engine can be measured: {reasons}", "; ".join(dict.fromkeys(skip.hint for skip in missing))
        )
    settings, model, split = resolve_common(settings, [entry.engine.name for entry in entries])
    assert settings.max_model_len is not None
    check_lengths(settings.input_len, settings.output_len, settings.max_model_len)
    if settings.warmup == "auto":
        settings = settings.model_copy(update={"warmup": settings.num_prompts})
    launches = {
        entry: engine_settings(settings, entry.engine_variant, model, settings.num_prompts, split)
        for entry in entries
    }
    for entry, launch in launches.items():
        check_gpus(entry.label, launch.parallelism, launch.device)
        if launch.caches_prefixes and (settings.settle or settings.min_duration):
            raise UsageError(
                f"{entry.label} would answer the same batch again from its prefix cache",
                "leave out --settle and --min-duration, or the prefix cache",
            )
        if entry.served:
            entry.engine.server(entry.engine.installed(), launch, port=0)
    return _Resolved(settings, launches, missing, split.client)


def _complete(run: BatchRun, resolved: _Resolved | None, notify: Notify) -> OfflineResults:
    """Measure what is left, write the results. `resolved` is None where nothing is left."""
    notify(Started(run.folder, len(run.info.order), len(run.done)))
    for skipped in run.skipped:
        if skipped.is_whole_engine:
            notify(EngineSkipped(skipped))
    if resolved is not None:
        entries = {entry.label: entry for entry in resolved.launches}
        for cell, (label, repeat) in enumerate(run.info.order):
            if cell not in run.done:
                _measure(run, resolved, entries[label], cell, repeat, notify)
                run.write_results()
    if not run.done:
        raise run.nothing_measured()
    notify(Reporting())
    return run.write_results()


def _measure(
    run: BatchRun, resolved: _Resolved, entry: Entry, cell: int, repeat: int, notify: Notify
) -> None:
    """Measure one cell. What goes wrong is noted, and the run can continue.

    Raises:
        CleanupError: The engine could not be ended. Nothing can be measured while it runs.
    """
    settings, launch = resolved.settings, resolved.launches[entry]
    log = log_file(run.folder, entry.engine_variant.ref, "server" if entry.served else "offline")
    notify(BatchStarting(entry.label, repeat, cell, len(run.info.order), log))
    try:
        batch = _batch(settings, repeat)
        with CellMonitor(gpus=launch.gpus) as monitor:
            if entry.served:
                measured, record = through_server(entry.engine, launch, batch, log, resolved.client)
            else:
                measured, record = through_worker(entry.engine, launch, batch, log)
        machine = monitor.summary(*measured.window)
        row = result(measured, entry.engine_variant, repeat, settings, batch.requests, launch.gpus, machine)
    except CleanupError:
        raise
    except BenchError as error:
        if is_interruption(error):
            raise KeyboardInterrupt from error
        fault = entry.engine_variant.skipped(error.message, error.hint, repeat=repeat)
        fault = fault.model_copy(update={"new_run": error.new_run})
        run.skip(fault)
        notify(EngineSkipped(fault))
    else:
        run.launched(record)
        run.finish(cell, row)
        notify(BatchDone(row))


def _batch(settings: OfflineSettings, repeat: int) -> Batch:
    """The prompts of a repeat: every engine gets the same, no two repeats share one. Those of the warm-up are
    others of the same lengths."""
    assert settings.warmup != "auto"
    seed = settings.seed + repeat
    content = SyntheticContent(settings.input_len, settings.output_len, settings.vocab_size)
    requests = content.take(settings.num_prompts, seed, seed)
    lengths = cycle((len(request.prompt), request.output_tokens) for request in requests)
    return Batch(
        requests,
        warmup(list(islice(lengths, settings.warmup)), settings.vocab_size, seed),
        settings.ignore_eos,
        settings.settle or 0.0,
        settings.min_duration or 0.0,
    )
