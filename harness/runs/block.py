"""Measures a block: one server, warmed up, and the cells that it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harness.engines.base import EngineVariant, RequestSettings
from harness.engines.request_facts import request_facts
from harness.errors import BenchError, CleanupError
from harness.runs.accuracy import score_engine
from harness.runs.answers import ask_engine
from harness.runs.asked_server import AskedServer
from harness.runs.events import EngineSkipped, EngineStarting, Notify
from harness.runs.folder import log_file
from harness.runs.measuring import LostError, Measuring
from harness.runs.resolved import Resolved
from harness.runs.run_state import Run
from harness.runs.schedule import Block, Cell
from harness.schema.online_summary import OnlineSummary

#: The cell that the same server measures after one; None: no more.
Following = Callable[[Cell, OnlineSummary], Cell | None]


def measure_block(
    run: Run,
    resolved: Resolved,
    block: Block,
    notify: Notify,
    following: Following = lambda cell, summary: None,
    side: int = 0,
) -> None:
    """Measure the cells of `block` that are not in the journal.

    What goes wrong is noted as a fault of every cell that is left, and the run can continue.

    Args:
        following: What comes after the block's last cell.
        side: Which of the run's sets of machines.

    Raises:
        CleanupError: The engine could not be ended. Nothing can be measured while it runs.
    """
    left = [cell for cell in block.cells if cell.index not in run.done]
    if not left:
        return
    engine_variant = block.engine_variant
    engine = resolved.engines[engine_variant.label]
    log = log_file(run.folder, engine_variant.ref, f"server.{side}" if side else "server")
    notify(EngineStarting(engine_variant.label, log))
    settings = resolved.engine_settings(engine_variant)
    testbed = resolved.machines.testbeds[side]
    try:
        idle = testbed.idle_watts(None if engine_variant.server else settings.gpus or None)
        with testbed.serve(engine, settings, log) as server:
            wanted = resolved.request_settings(engine_variant, server.served_name)
            asked = engine.adapted(server, wanted)
            encode = engine.encoder(asked)
            server.record.facts.update(request_facts(wanted, asked))
            run.launched(server.record)
            measuring = Measuring(
                run, AskedServer(resolved, testbed, engine, server, asked, encode), notify, idle
            )
            measuring.begin(left[0])
            measuring.note_waiting()
            checked = _checked(engine_variant, asked)
            if checked is not None:
                checking = engine.encoder(replace(checked, token_ids=True))
                ask_engine(run, resolved, engine_variant, server, checking, asked.ignore_eos)
            while left:
                summary = measuring.measure(left[0])
                cell = left.pop(0)
                if not left and (more := following(cell, summary)):
                    left.append(more)
                    measuring.go_on(more)
            if checked is not None:
                ask_engine(run, resolved, engine_variant, server, checking, asked.ignore_eos)
                score_engine(run, resolved, engine_variant, server, engine.encoder(checked))
    except CleanupError:
        raise
    except BenchError as error:
        for cell in left:
            fault = engine_variant.skipped(error.message, error.hint, load=cell.load, repeat=cell.repeat)
            fault = fault.model_copy(update={"new_run": error.new_run})
            if cell is left[0] and isinstance(error, LostError):
                reason = f"{error.message}{error.meanwhile}"
                fault = fault.model_copy(update={"reason": reason, "cause": error.message})
            run.skip(fault)
            notify(EngineSkipped(fault))


def _checked(engine_variant: EngineVariant, asked: RequestSettings) -> RequestSettings | None:
    """How a server is asked for what checks it; None where it cannot be.

    It is asked for completions, also where chats are measured: one model answers both. A running server that
    is asked for chats may have nothing else, and text of an unknown tokenizer is no prompt to compare.
    """
    unknown = asked.endpoint == "chat" or (asked.text and asked.tokenizer is None)
    if engine_variant.server is not None and unknown:
        return None
    return replace(asked, endpoint="completions")
