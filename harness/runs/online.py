"""`bench online`: measures every cell and writes the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from harness.cluster.this_machine import machines_of
from harness.engines.selection import make_engine_variants
from harness.errors import BenchError, UsageError
from harness.fairness.ledger import ledger
from harness.files import write_json
from harness.metrics.prefixes import prefix_hits
from harness.metrics.samples import split
from harness.metrics.summary import summarize
from harness.records.parquet import assemble, read_records
from harness.runs.accuracy import task_scores
from harness.runs.answers import judge_answers, judged_answers
from harness.runs.block import ask_what_is_left
from harness.runs.events import EngineNotAsked, EngineSkipped, Notify, Reporting, Started
from harness.runs.folder import JOURNAL, OFFLINE_RESULTS, ONLINE_RESULTS, lock_run, make_folder
from harness.runs.info import make_info
from harness.runs.journal import read_journal, watched
from harness.runs.recompute import compared_rows, recompute
from harness.runs.resolved import Resolved, draw_nonce, resolve_online
from harness.runs.run_state import Run
from harness.runs.search import search_is_over, search_loads
from harness.runs.search_state import search_results
from harness.runs.side_by_side import measure_blocks, sides
from harness.runs.tune.found import tune_results
from harness.runs.tune.measure import measure_tuning, tuning_is_over
from harness.runs.tune.tuning import tuning_of
from harness.schema.online_settings import OnlineSettings
from harness.schema.online_summary import OnlineSummary
from harness.schema.prices import hourly, read_prices
from harness.schema.results import BatchRow, OnlineResults
from harness.schema.search import SearchPlan
from harness.schema.tune import TunePlan


def run_online(
    settings: OnlineSettings,
    command: list[str],
    notify: Notify,
    search: SearchPlan | None = None,
    tune: TunePlan | None = None,
) -> tuple[Path, OnlineResults]:
    """Measure every cell that `settings` ask for. Returns the run's folder and its results.

    A server is started for each engine and repeat and answers its loads one after the other, with prompts of
    their own. Failures are recorded in `skipped`, and the rest continues.

    Args:
        command: The command line, to be repeated.
        notify: Called with each event.
        search: How the loads are chosen; None: they are those of the settings.
        tune: Which of the engines, configurations of one, are measured how often; None: all alike.

    Raises:
        UsageError: A setting cannot work; nothing was started.
        BenchError: No cell could be measured, or an engine could not be ended.
    """
    prices = None if settings.price is None else read_prices(settings.price)
    if settings.side_by_side > 1 and search:
        raise UsageError("each load of a search depends on those before it", "leave out --side-by-side")
    with _ended_early() as begun, machines_of(settings) as machines:
        in_flight = search.highest if search and search.by == "concurrency" else 0
        resolved = resolve_online(settings, notify, machines, in_flight)
        info = make_info(
            resolved.settings,
            command,
            resolved.found,
            resolved.workload.source.record,
            resolved.calibration,
            machines,
        )
        info.search, info.tune, info.prices = search, tune, prices
        info.most_clients = resolved.most_clients
        info.nonce_drawn = settings.prompt_nonce != resolved.settings.prompt_nonce
        if prices is not None:
            hourly(prices, info.environment, resolved.settings.device)
        folder = make_folder(settings.out, info.kind)
        with lock_run(folder):
            begun.append(run := Run.create(folder, info, resolved.missing))
            return folder, _complete(run, resolved, notify)


def resume_online(folder: Path, notify: Notify) -> tuple[Path, OnlineResults]:
    """Measure the cells that the run in `folder` has not finished; nothing is measured twice.

    A cell that failed is tried again. Engines that were not asked everything after their cells are started
    for that alone; where they cannot be, the results say so. Where nothing is left, no engine and no GPU is
    needed. A running server may have answered a part of what is left, so it gets other prompts, unless their
    nonce was given.

    Raises:
        UsageError: The folder holds no run, somebody is at it, or an engine, the code, the machine, the trace
            or the model is not as it was when the run began.
        BenchError: No cell could be measured, or an engine could not be ended.
    """
    with _ended_early() as begun, lock_run(folder), ExitStack() as stack:
        begun.append(run := Run.open(folder))
        measured, resolved = _all_measured(run), None
        if not measured or any(unasked.what for unasked in run.info.unasked):
            try:
                machines = stack.enter_context(machines_of(run.settings))
                resolved = resolve_online(run.settings, notify, machines)
                _unchanged(run, resolved)
                run.nonce = draw_nonce() if run.info.nonce_drawn else None
            except BenchError as error:
                if not measured:
                    raise
                resolved = None
                for old in run.info.unasked:
                    if old.what:
                        asked = run.to_ask(old.label, old.repeat, old.what, error.message, error.hint)
                        notify(EngineNotAsked(asked))
        return folder, _complete(run, resolved, notify)


def results_so_far(folder: Path) -> OnlineResults | None:
    """Write the results of the cells that an interrupted run has; None where they show nothing yet.

    Raises:
        UsageError: The folder holds no run, or another process works on it.
    """
    with lock_run(folder):
        run = Run.open(folder)
        repeats = {cell.repeat for block in run.blocks() for cell in block.cells if cell.index in run.done}
        if not any(map(run.info.counts, repeats)):
            return None
        run.interrupted(is_so=True)
        return _write_results(run)


@contextmanager
def _ended_early() -> Iterator[list[Run]]:
    """Ends the run in the list where the user interrupts, be it while machines are given back."""
    begun: list[Run] = []
    try:
        yield begun
    except KeyboardInterrupt:
        for run in begun:
            with suppress(UsageError), lock_run(run.folder):
                run.end_early()
        raise


def _all_measured(run: Run) -> bool:
    """Whether no cell is left to measure."""
    if run.info.search is not None:
        return bool(run.done) and search_is_over(run, _results(run).summaries)
    if run.info.tune is not None:
        return tuning_is_over(run, _each_cell(run))
    return run.done == {cell.index for block in run.blocks() for cell in block.cells}


def _unchanged(run: Run, resolved: Resolved) -> None:
    """Raises UsageError when what is left would be measured with something else."""
    run.check_unchanged(resolved.missing, resolved.found, resolved.machines.environment())
    here = {engine_variant.label for engine_variant in resolved.engine_variants}
    if gone := next((label for label, _ in run.info.order if label not in here), None):
        raise UsageError(
            f"{gone} is part of the run, and its variant is not one of such runs any more",
            "restore the variants of the engines, or start a new run",
        )
    if run.settings.loads[0].in_flight is None or run.settings.dataset is not None:
        what = "trace" if run.settings.dataset is None else "dataset"
        if resolved.workload.source.record != run.info.trace:
            raise UsageError(
                f"the {what} is not the one that the run began with", "bring it back, or start a new run"
            )


def _complete(run: Run, resolved: Resolved | None, notify: Notify) -> OnlineResults:
    """Measure and judge what is left, write the results. `resolved` is None where no cell is left."""
    blocks, search, tune = run.blocks(), run.info.search, run.info.tune
    unasked = list(run.info.unasked)
    cells = sum(len(block.cells) for block in blocks)
    if search is not None and resolved is not None:
        cells = search.cells * len(resolved.engine_variants)
    elif tune is not None and resolved is not None:
        cells = tune.cells(run.settings.repeats)
    notify(Started(run.folder, cells, len(run.done), run.info.trace, about=tune is not None))
    for skipped in run.skipped:
        if skipped.is_whole_engine:
            notify(EngineSkipped(skipped))
    if resolved is not None and search is not None:
        search_loads(run, resolved, _results(run).summaries if run.done else [], notify)
    elif resolved is not None and tune is not None:
        measure_tuning(run, resolved, _each_cell(run), notify)
    elif resolved is not None:
        measure_blocks(run, resolved, sides(blocks, len(resolved.machines.testbeds)), notify)
    if resolved is not None:
        ask_what_is_left(run, resolved, unasked, notify)
    if not run.done:
        raise run.nothing_measured()
    notify(Reporting())
    judge_answers(run, resolved)
    run.interrupted(is_so=False)
    return _write_results(run)


def _write_results(run: Run) -> OnlineResults:
    results = _results(run)
    assemble(run.folder, run.done)
    name = ONLINE_RESULTS if run.info.kind == "online" else OFFLINE_RESULTS
    write_json(run.folder / name, results)
    return results


def _results(run: Run) -> OnlineResults:
    """Everything in the results comes from the stored tables; engines are in the order of the settings."""
    records = read_records(run.folder, run.done)
    labels = [engine_variant.label for engine_variant in make_engine_variants(run.settings)]
    requests = compared_rows(run.info, records.requests)
    groups = split(requests, records.chunks, run.settings.cut, labels)
    measured_labels = {group.label for group in groups}
    del records  # the gaps between chunks are what is needed of them
    entries = read_journal(run.folder / JOURNAL)
    reported = {entry.cell: entry.reported for entry in entries if entry.reported}
    counts = {entry.cell: entry.prefix_cache for entry in entries if entry.prefix_cache is not None}
    prefixes = sorted(prefix_hits(requests, counts), key=lambda hits: labels.index(hits.label))
    senders = {entry.cell: entry.senders for entry in entries if entry.senders}
    measured = OnlineResults(
        meta=run.info,
        summaries=[],
        comparisons=[],
        skipped=[fault for fault in run.left_out() if run.info.counts(fault.repeat)],
        prefixes=prefixes,
        speculation=[drafted for entry in entries for drafted in entry.drafted],
        ledger=ledger([launch for launch in run.info.launches if launch.label in measured_labels]),
        answers=judged_answers(run.folder),
        accuracy=task_scores(run.folder),
        reported=reported,
        machines=watched(entries),
        senders=senders,
        nodes={entry.cell: entry.node for entry in entries if entry.node is not None},
    )
    results = recompute(measured, groups)
    if run.info.kind == "offline":
        results.results = [BatchRow.of(cell) for cell in results.summaries if cell.repeat is not None]
    if run.info.search is not None:
        results.search = search_results(
            run.info.search,
            entries,
            results.summaries,
            results.skipped,
            interrupted=run.info.interrupted,
        )
    if run.info.tune is not None:
        tuning = tuning_of(run.info.tune, _each_cell(run), run.left_out())
        results.tune = tune_results(tuning, groups, results.summaries, run.settings.slo)
    return results


def _each_cell(run: Run) -> list[OnlineSummary]:
    """A summary of each cell, in the order in which they were measured."""
    if not run.done:
        return []
    records = read_records(run.folder, run.done)
    made = summarize(
        records.requests,
        records.chunks,
        slo=run.settings.slo,
        cut=run.settings.cut,
        calibration=run.calibration,
        wanted_s=run.settings.measured_s,
    )
    by_cell = {(summary.label, summary.repeat): summary for summary in made}
    return [by_cell[entry.label, entry.repeat] for entry in read_journal(run.folder / JOURNAL)]
