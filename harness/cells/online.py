"""`bench online`: measures every cell and writes the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from harness.cells.cell import Block, Cell, plan
from harness.cells.events import (
    CellDone,
    CellProgress,
    EngineSkipped,
    EngineStarting,
    EngineWarming,
    Notify,
    Reporting,
    Started,
)
from harness.cells.folder import make_folder, now, write_json
from harness.cells.resolve import Resolved, resolve_online
from harness.engines.base import Asking, Encoder, Server
from harness.errors import BenchError, EngineError, UsageError
from harness.load.plan import LoadPlan, LoadResult, Progress, WireRequest
from harness.load.run import run_load
from harness.metrics.comparison import compare
from harness.metrics.summary import summarize
from harness.records.cell import CellIdentity, CellRecords, Expected, read_cell
from harness.records.journal import JournalEntry, append_journal, read_journal
from harness.records.store import assemble, read_records, write_cell
from harness.spec.loader import build
from harness.spec.results import OnlineResults, RunInfo, Skipped
from harness.spec.settings import OnlineSettings
from harness.telemetry.machine import environment
from harness.telemetry.versions import versions
from harness.workload import PlannedRequest

RUN, RESULTS, JOURNAL = "run.json", "online_results.json", "journal.jsonl"


@dataclass
class _Run:
    """A run under way."""

    folder: Path
    resolved: Resolved
    info: RunInfo
    notify: Notify
    done: set[int]
    faults: list[Skipped] = field(default_factory=list)


def run_online(settings: OnlineSettings, command: list[str], notify: Notify) -> tuple[Path, OnlineResults]:
    """Measure every cell that `settings` ask for. Returns the run's folder and its results.

    A server is started for each engine and repeat and answers its scales one after the other, with prompts of
    their own. What fails is noted in `skipped` and the rest goes on.

    Args:
        command: The command line, to be repeated.
        notify: Is told what happens.

    Raises:
        UsageError: A setting cannot work; nothing was started.
        BenchError: No cell could be measured.
    """
    resolved = resolve_online(settings)
    folder = make_folder(settings.out, "online")
    info = RunInfo(
        kind="online",
        created=now(),
        command=command,
        settings=resolved.settings.model_dump(mode="json"),
        environment=environment(),
        versions=versions(resolved.found),
        trace=resolved.workload.record,
    )
    return _go(_Run(folder, resolved, info, notify, set()))


def resume_online(folder: Path, notify: Notify) -> tuple[Path, OnlineResults]:
    """Measure the cells that the run in `folder` has not finished; nothing is measured twice.

    Raises:
        UsageError: The folder holds no run, or its engines are not here any more.
        BenchError: No cell could be measured.
    """
    try:
        info = RunInfo.model_validate_json((folder / RUN).read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{folder} holds no run that can be resumed: {error}", "name the folder of a run"
        ) from None
    if info.kind != "online":
        raise UsageError(f"{folder} is an {info.kind} run", "only online runs are resumed")
    resolved = resolve_online(build(OnlineSettings, None, info.settings))
    done = {entry.cell for entry in read_journal(folder / JOURNAL)}
    return _go(_Run(folder, resolved, info, notify, done))


def _go(run: _Run) -> tuple[Path, OnlineResults]:
    write_json(run.folder / RUN, run.info)
    blocks = plan(run.resolved.settings, run.resolved.contenders)
    run.notify(Started(run.folder, sum(len(block.cells) for block in blocks)))
    for skipped in run.resolved.missing:
        run.notify(EngineSkipped(skipped))
    for block in blocks:
        left = [cell for cell in block.cells if cell.index not in run.done]
        if left:
            _measure_block(run, block, left)
    if not run.done:
        reasons = "; ".join(f"{fault.label}: {fault.reason}" for fault in run.faults)
        raise BenchError(f"nothing could be measured: {reasons}", f"see the logs in {run.folder / 'logs'}")
    run.notify(Reporting())
    return run.folder, _write_results(run)


def _measure_block(run: _Run, block: Block, cells: list[Cell]) -> None:
    """One server, its cells in turn. What fails is noted; a failing server ends the block."""
    who = block.contender
    engine = run.resolved.engines[who.label]
    log = run.folder / "logs" / f"{str(who.ref).replace('@', '.')}.server.log"
    left = list(cells)
    run.notify(EngineStarting(who.label, log))
    try:
        with engine.open(run.resolved.engine_settings(who), log) as server:
            if not any(launch.label == who.label for launch in run.info.launches):
                run.info.launches.append(server.record)
                write_json(run.folder / RUN, run.info)
            asking = _asking(run, server)
            encode = engine.encoder(asking)
            _warm_up(run, server, encode, cells[0])
            while left:
                _measure(run, server, encode, left[0])
                run.done.add(left.pop(0).index)
                server.check()
    except EngineError as error:
        for cell in left:
            fault = Skipped(
                engine=who.ref.name, variant=who.ref.variant, label=who.label,
                scale=cell.scale, repeat=cell.repeat, reason=error.message, mend=error.mend,
            )  # fmt: skip
            run.faults.append(fault)
            run.notify(EngineSkipped(fault))


def _asking(run: _Run, server: Server) -> Asking:
    settings = run.resolved.settings
    folder = run.resolved.model.path if run.resolved.model else Path()
    return Asking(folder, server.served_name, settings.ignore_eos, settings.seed)


def _warm_up(run: _Run, server: Server, encode: Encoder, cell: Cell) -> None:
    """Send the warm-up waves. Raises EngineError when none of a wave's requests succeeds."""
    waves = run.resolved.workload.warmup_waves(cell.load_seed)
    run.notify(EngineWarming(cell.contender.label, server.record.ready_s, sum(map(len, waves))))
    for wave in waves:
        result = _send(run, server, encode, wave, concurrency=len(wave))
        records = _read(run, result, wave, cell)
        if records.requests["error"].notna().all():
            first = records.requests.iloc[0]
            server.check()
            raise EngineError(
                f"no request of the warm-up succeeded: {first['error']}: {first['error_detail']}",
                "see the engine's log in the run's folder",
            )


def _measure(run: _Run, server: Server, encode: Encoder, cell: Cell) -> None:
    requests = run.resolved.workload.requests(cell.scale, cell.load_seed)

    def progress(progress: Progress) -> None:
        run.notify(CellProgress(cell, len(requests), progress))

    progress(Progress(0, 0, 0))
    result = _send(run, server, encode, requests, run.resolved.settings.concurrency, progress)
    records = _read(run, result, requests, cell)
    write_cell(run.folder, cell.index, records)
    ref = cell.contender.ref
    entry = JournalEntry(
        cell=cell.index, engine=ref.name, variant=ref.variant, label=cell.contender.label,
        scale=cell.scale, repeat=cell.repeat, finished=now(), requests=len(requests),
        failed=int(records.requests["error"].notna().sum()),
        detail={"clients": [msgspec.to_builtins(usage) for usage in result.usage]},
    )  # fmt: skip
    append_journal(run.folder / JOURNAL, entry)
    [summary, *_] = summarize(records.requests, records.chunks, run.resolved.settings.slo)
    run.notify(CellDone(cell, summary))


def _send(
    run: _Run,
    server: Server,
    encode: Encoder,
    requests: list[PlannedRequest],
    concurrency: int | None,
    progress: Callable[[Progress], None] | None = None,
) -> LoadResult:
    wire = [
        WireRequest(request.index, request.t_sched_s, encode(request.prompt.tolist(), request.output_tokens))
        for request in requests
    ]
    load = LoadPlan(server.target, wire, concurrency)
    return run_load(load, clients=run.resolved.clients, cpus=run.resolved.cpus.client, progress=progress)


def _read(run: _Run, result: LoadResult, requests: list[PlannedRequest], cell: Cell) -> CellRecords:
    expected = [Expected(len(request.prompt), request.output_tokens) for request in requests]
    ref = cell.contender.ref
    identity = CellIdentity(cell.index, ref.name, ref.variant, cell.contender.label, cell.scale, cell.repeat)
    return read_cell(result, expected, identity, exact_length=run.resolved.settings.ignore_eos)


def _write_results(run: _Run) -> OnlineResults:
    """Everything in the results comes from the stored tables."""
    records = read_records(run.folder, run.done)
    settings = run.resolved.settings
    results = OnlineResults(
        meta=run.info,
        summaries=summarize(records.requests, records.chunks, settings.slo, settings.seed),
        comparisons=compare(records.requests, records.chunks, seed=settings.seed),
        skipped=[*run.resolved.missing, *run.faults],
    )
    assemble(run.folder, run.done)
    write_json(run.folder / RUN, run.info)
    write_json(run.folder / RESULTS, results)
    return results
