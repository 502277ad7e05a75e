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
from harness.metrics.samples import split
from harness.metrics.summary import prefix_hits
from harness.records.parquet import assemble
from harness.runs.block import ask_what_is_left, measure_block, measure_side_by_side
from harness.runs.checks import judge_answers, judged_answers, task_scores
from harness.runs.events import (
    EngineNotAsked,
    EngineSkipped,
    Notify,
    Prepared,
    RepeatsNeeded,
    Reporting,
    Started,
)
from harness.runs.folder import OFFLINE_RESULTS, ONLINE_RESULTS, begin_folder, lock_run
from harness.runs.journal import watched
from harness.runs.reader import Run, final_rows, recompute
from harness.runs.resolved import Resolved, draw_nonce, resolve_online
from harness.runs.run_state import Run as RunState
from harness.runs.schedule import Cell, Done, Grid, Plan, blocks_of, grid_blocks
from harness.runs.search import Search
from harness.runs.tuning import Tune
from harness.schema.machines import hourly, read_prices
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import BatchRow, OnlineResults
from harness.schema.run_info import Versions
from harness.schema.search import SearchPlan
from harness.schema.tune import TunePlan
from harness.telemetry.machine import hardware, hardware_text
from harness.telemetry.revision import DIRTY, source_hash


def run_online(
    settings: OnlineSettings,
    command: list[str],
    notify: Notify,
    search: SearchPlan | None = None,
    tune: TunePlan | None = None,
) -> Run:
    """Measure every cell that `settings` ask for, and return the finished run.

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
        in_flight = search.highest if search and search.closed else 0
        resolved = resolve_online(settings, notify, machines, in_flight)
        info = resolved.info(command)
        info.search, info.tune, info.prices = search, tune, prices
        info.nonce_drawn = settings.prompt_nonce != resolved.settings.prompt_nonce
        if prices is not None:
            hourly(prices, info.environment, resolved.settings.device)
        folder = begin_folder(settings.out, info.kind, notify)
        with lock_run(folder):
            begun.append(run := RunState.create(folder, info, resolved.missing))
            return _measure(run, resolved, notify)


def resume_online(folder: Path, notify: Notify) -> Run:
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
        begun.append(run := RunState.open(folder))
        measured, resolved = make_plan(run).next(run.state) is None, None
        if not measured or any(old.what for old in run.info.unasked):
            try:
                machines = stack.enter_context(machines_of(run.settings))
                resolved = resolve_online(run.settings, notify, machines)
                _check_unchanged(run, resolved)
                run.nonce = draw_nonce() if run.info.nonce_drawn else None
            except BenchError as error:
                if not measured:
                    raise
                resolved = None
                for old in run.info.unasked:
                    if old.what:
                        unasked = run.to_ask(old.label, old.repeat, old.what, error.message, error.hint)
                        notify(EngineNotAsked(unasked))
        if not measured:
            notify(Prepared())
        return _measure(run, resolved, notify)


def results_so_far(folder: Path) -> Run | None:
    """Write the results of the cells that a run has which ended early; None where they show nothing yet.

    Raises:
        UsageError: The folder holds no run, or another process works on it.
    """
    with lock_run(folder):
        run = RunState.open(folder)
        if not any(run.info.counts(entry.repeat) for entry in run.entries):
            return None
        is_left = make_plan(run).next(run.state) is not None or any(old.what for old in run.info.unasked)
        run.interrupted(is_so=is_left)
        return _write_results(run, make_plan(run))


def make_plan(run: RunState, sides: int = 1, notify: Notify = lambda event: None) -> Plan:
    """Return the plan of a run that is measured on so many sets of machines at once."""
    if run.info.search is not None:
        interrupted = run.info.interrupted
        variants = run.engine_variants
        return Search(run.info.search, run.settings_now, variants, run.state, interrupted=interrupted)
    if run.info.tune is not None:
        return Tune(run.info.tune, run.settings_now, run.engine_variants, sides, notify)
    return Grid(grid_blocks(run.settings_now, run.engine_variants, sides), run.settings_now)


@contextmanager
def _ended_early() -> Iterator[list[RunState]]:
    """Ends the run in the list where the user interrupts, be it while machines are given back."""
    begun: list[RunState] = []
    try:
        yield begun
    except KeyboardInterrupt:
        for run in begun:
            with suppress(UsageError), lock_run(run.folder):
                run.end_early()
        raise


def _measure(run: RunState, resolved: Resolved | None, notify: Notify) -> Run:
    """Measure and judge what is left, write the results. `resolved` is None where no cell is left."""
    plan = make_plan(run, 1 if resolved is None else len(resolved.machines.testbeds), notify)
    unasked = list(run.info.unasked)
    expected = len(run.entries) if resolved is None else plan.expected(run.state)
    notify(Started(run.folder, expected, len(run.entries), run.info.trace, about=plan.is_estimate))
    for skipped in run.skipped:
        if skipped.is_whole_engine:
            notify(EngineSkipped(skipped))
    while resolved is not None and (cells := plan.next(run.state)):
        sides: dict[int, list[Cell]] = {}
        for cell in cells:
            sides.setdefault(cell.side, []).append(cell)
        blocks = [blocks_of(of_side) for of_side in sides.values()]
        if len(blocks) > 1:
            measure_side_by_side(run, resolved, plan, blocks, notify)
        else:
            for block in blocks[0]:
                measure_block(run, resolved, plan, block, notify)
        if contrasts := plan.power(run.state):
            notify(RepeatsNeeded(contrasts))
    if resolved is not None:
        ask_what_is_left(run, resolved, unasked, notify)
    if not run.entries:
        raise run.nothing_measured()
    notify(Reporting())
    judge_answers(run, resolved)
    run.interrupted(is_so=False)
    return _write_results(run, make_plan(run))


def _write_results(run: RunState, plan: Plan) -> Run:
    """Compute the results from the raw tables, engines in the order of the settings, and write them."""
    records = assemble(run.folder, run.done)
    variants, prefix_cache = make_engine_variants(run.settings), run.settings.prefix_cache
    labels = [engine_variant.label for engine_variant in variants]
    caching = [variant.label for variant in variants if variant.may_know_prompts(prefix_cache)]
    requests = final_rows(run.info, records.requests)
    groups = split(requests, records.chunks, run.settings.cut, labels)
    in_order = sorted(groups, key=lambda group: (labels.index(group.label), group.cell))
    measured_labels = {group.label for group in groups}
    entries = run.entries
    counts = {entry.cell: entry.prefix_cache for entry in entries if entry.prefix_cache is not None}
    measured = OnlineResults(
        meta=run.info,
        summaries=[],
        comparisons=[],
        skipped=[fault for fault in run.left_out() if run.info.counts(fault.repeat)],
        prefixes=prefix_hits(in_order, counts, caching),
        speculation=[drafted for entry in entries for drafted in entry.drafted],
        ledger=ledger([launch for launch in run.info.launches if launch.label in measured_labels]),
        answers=judged_answers(run.folder),
        accuracy=task_scores(run.folder),
        reported={entry.cell: entry.reported for entry in entries if entry.reported},
        machines=watched(entries),
        senders={entry.cell: entry.senders for entry in entries if entry.senders},
        late_before={entry.cell: entry.late_before for entry in entries if entry.late_before},
        nodes={entry.cell: entry.node for entry in entries if entry.node is not None},
    )
    results = recompute(measured, groups, records.server)
    by_cell = {(cell.label, cell.load, cell.repeat): cell for cell in results.summaries}
    final = [
        entry.model_copy(
            update={"summary": by_cell.get((entry.label, entry.load, entry.repeat), entry.summary)}
        )
        for entry in entries
    ]
    results = plan.result(Done(final, run.left_out()), results, groups)
    if run.info.kind == "offline":
        results.results = [BatchRow.of(cell) for cell in results.summaries if cell.repeat is not None]
    write_json(run.folder / (ONLINE_RESULTS if run.info.kind == "online" else OFFLINE_RESULTS), results)
    return Run(run.folder, results, **vars(records), groups=groups)


def _check_unchanged(run: RunState, resolved: Resolved) -> None:
    """Raises UsageError when what is left would be measured with other engines, by other code, on other
    hardware or with other requests than the rest."""
    info, hint = run.info, "bring it back, or start a new run"
    for fault in resolved.missing:
        if fault.label not in run.absent:
            raise UsageError(f"{fault.label} is part of the run and not here any more: {fault.reason}", hint)
    installed: dict[str, str] = {here.engine: here.version for here in resolved.installations}
    for launch in info.launches:
        version = installed.get(launch.engine)
        if version != launch.version:
            raise UsageError(f"{launch.label} was {launch.version} in the run and is {version} now", hint)
    began, source = info.versions, source_hash()
    if began.source not in (None, source):
        raise UsageError(
            f"the run began with other code of bench and roseinfer: {began.source}, and this is {source}",
            f"{_how_to_bring_back(began)}, or start a new run",
        )
    device, machine, here = info.settings.device, info.environment, resolved.machines.environment()
    if machine and hardware(device, machine) != hardware(device, here):
        raise UsageError(
            f"the run began on {hardware_text(device, machine)}, and this is {hardware_text(device, here)}",
            "resume it where it began, or start a new run",
        )
    labels = {engine_variant.label for engine_variant in resolved.engine_variants}
    if gone := next((label for label, _ in info.order if label not in labels), None):
        raise UsageError(
            f"{gone} is part of the run, and its variant is not one of such runs any more",
            "restore the variants of the engines, or start a new run",
        )
    if run.settings.loads[0].in_flight is None or run.settings.dataset is not None:
        what = "trace" if run.settings.dataset is None else "dataset"
        if resolved.workload.source.record != info.trace:
            raise UsageError(f"the {what} is not the one that the run began with", hint)


def _how_to_bring_back(versions: Versions) -> str:
    """The code of a run."""
    if versions.git_rev is None:
        return f"install the rosebench {versions.rosebench} that it began with"
    commit = versions.git_rev.removesuffix(DIRTY)
    return f"check out revision {commit[:10]}" + (" with its changes" if commit != versions.git_rev else "")
