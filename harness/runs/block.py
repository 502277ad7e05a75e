"""Measures a block: one server, warmed up, and the cells that it answers."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace

from harness.engines.base import EngineVariant
from harness.engines.registry import ENGINES
from harness.engines.running.reported import note_reported
from harness.engines.selfreport import request_facts
from harness.errors import BenchError, CleanupError, LostNodeError, is_interruption
from harness.runs.cell_runner import CellRunner, LostError
from harness.runs.checks import ask_engine, checked_as, checks_after_cells, score_engine
from harness.runs.events import EngineNotAsked, EngineSkipped, EngineStarting, Event, Notify
from harness.runs.folder import log_file
from harness.runs.in_process import measure_in_process
from harness.runs.resolved import Resolved
from harness.runs.run_state import Run
from harness.runs.schedule import Block, Cell, Grid, Plan, blocks_of
from harness.runs.server_session import ServerSession
from harness.schema.run_info import Unasked


def measure_side_by_side(
    run: Run, resolved: Resolved, plan: Plan, sides: Sequence[Sequence[Block]], notify: Notify
) -> None:
    """Measure blocks on several sets of machines at once; `sides` has the blocks of each.

    Raises:
        CleanupError: As `measure_block`; what the other sides measured so far is kept.
    """
    lock = threading.Lock()

    def notify_in_turn(event: Event) -> None:
        with lock:
            notify(event)

    def measure(blocks: Sequence[Block]) -> None:
        for block in blocks:
            if not run.is_ending:
                measure_block(run, resolved, plan, block, notify_in_turn)

    with ThreadPoolExecutor(len(sides)) as threads:
        measuring = [threads.submit(measure, blocks) for blocks in sides]
        try:
            for ended in as_completed(measuring):
                ended.result()
        except BaseException:
            run.end_early()
            for testbed in resolved.machines.testbeds:
                testbed.abandon()
            raise


def ask_what_is_left(run: Run, resolved: Resolved, unasked: Iterable[Unasked], notify: Notify) -> None:
    """Start engines whose cells are measured once more, for what they were not asked after these.

    Raises:
        CleanupError: As `measure_block`.
    """
    for old in unasked:
        place = old.label, old.repeat
        if run.left_to_ask(*place):
            blocks = blocks_of(cell for cell in run.cells() if cell.index in run.done)
            block = next((block for block in blocks if _place(block) == place), None)
            if block is not None:
                measure_block(run, resolved, Grid([]), block, notify)


def _use_worker(
    run: Run, resolved: Resolved, engine_variant: EngineVariant, cells: Sequence[Cell], notify: Notify
) -> None:
    """Measure cells of an engine in a process of its own, a fresh one for each."""
    log = log_file(run.folder, engine_variant.ref, "offline")
    notify(EngineStarting(engine_variant.label, log))
    for cell in cells:
        try:
            measure_in_process(run, resolved, cell, log, notify)
        except CleanupError:
            raise
        except BenchError as error:
            if is_interruption(error):
                raise KeyboardInterrupt from error
            run.skip(fault := cell.skipped(error))
            notify(EngineSkipped(fault))


def measure_block(run: Run, resolved: Resolved, plan: Plan, block: Block, notify: Notify) -> None:
    """Measure the cells of `block` that are not in the journal: start its server, ask what follows them.

    What goes wrong is noted as a fault of every cell that is left, and the run can continue. Where no cell is
    left, its server is only asked what follows.

    Raises:
        CleanupError: The engine could not be ended. Nothing can be measured while it runs.
    """
    left = [cell for cell in block.cells if cell.index not in run.done]
    first = (left or block.cells)[0]
    engine_variant, (label, repeat), side = block.engine_variant, _place(block), block.cells[0].side
    if engine_variant.in_process:
        _use_worker(run, resolved, engine_variant, left, notify)
        return
    engine = resolved.engines[engine_variant.label]
    log = log_file(run.folder, engine_variant.ref, f"server.{side}" if side else "server")
    notify(EngineStarting(engine_variant.label, log))
    settings = resolved.engine_settings(engine_variant)
    testbed = resolved.machines.testbeds[side]
    try:
        idle = testbed.idle(None if engine_variant.server else settings.gpus)
        with testbed.serve(engine, settings, log) as server:
            preferred = resolved.request_settings(engine_variant, server.served_name)
            adapted = engine.adapted(server, preferred)
            encode = engine.encoder(adapted)
            server.record.facts.update(request_facts(preferred, adapted))
            session = ServerSession(resolved, testbed, engine, server, adapted, encode)
            launched = run.first_launch(label)
            if engine_variant.server is not None and (launched is None or launched.version):
                note_reported(server, ENGINES.values())
            run.launched(server.record)
            measuring = CellRunner(run, session, notify, idle)
            measuring.begin(first)
            measuring.note_waiting()
            measuring.note_prompts_again(first)
            checked = checked_as(engine_variant, adapted)
            run.to_ask(label, repeat, [] if checked is None else checks_after_cells(run, resolved, label))
            if checked is not None:
                checking = engine.encoder(replace(checked, token_ids=True))
                if left:
                    ask_engine(run, resolved, engine_variant, server, checking, adapted.ignore_eos)
            while left:
                measuring.measure(left[0])
                cell = left.pop(0)
                if not left and (more := plan.next_of_server(cell, run.state)):
                    left.append(more)
                    measuring.go_on(more)
            if checked is not None:
                ask_engine(run, resolved, engine_variant, server, checking, adapted.ignore_eos)
                run.asked(label, repeat, "answers")
                score_engine(run, resolved, engine_variant, server, engine.encoder(checked))
                run.asked(label, repeat, "accuracy")
    except CleanupError:
        raise
    except BenchError as error:
        if is_interruption(error):
            raise KeyboardInterrupt from error
        if run.is_ending:
            return
        lost_node = isinstance(error, LostNodeError) or (isinstance(error, LostError) and error.node)
        if left:
            run.to_ask(label, repeat, [])  # by the server that measures these cells another time
        else:
            checks = run.left_to_ask(label, repeat)
            notify(EngineNotAsked(run.to_ask(label, repeat, checks, error.message, error.hint)))
        for cell in left:
            fault = cell.skipped(error)
            if cell is left[0] and isinstance(error, LostError):
                reason = f"{error.message}{error.meanwhile}"
                fault = fault.model_copy(update={"reason": reason, "cause": error.message})
            run.skip(fault, lost_node=lost_node)
            notify(EngineSkipped(fault))


def _place(block: Block) -> tuple[str, int]:
    """Label and repeat."""
    return block.engine_variant.label, block.cells[0].repeat
