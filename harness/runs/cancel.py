"""`bench cancel`: what an engine goes on to compute for a client that has left.

All slots of a server are taken, and one more request waits. Then one answer ends, or its client leaves after
as many tokens: the waiting request gets its first token later by as much as the slot stayed taken. That needs
nothing of the server but that it answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness.cluster.this_machine import machines_of
from harness.engines.base import EngineVariant
from harness.engines.prometheus import Samples, read_samples, rise, series_values
from harness.engines.registry import ENGINES
from harness.errors import CleanupError, EngineError, UsageError
from harness.files import write_json
from harness.loadgen.client import token_times
from harness.loadgen.handover import hand_over
from harness.loadgen.host_load import resolve
from harness.loadgen.load_plan import RawResponse
from harness.metrics.intervals import order_statistics
from harness.runs.events import EngineSkipped, EngineStarting, Notify
from harness.runs.folder import begin_folder, log_file
from harness.runs.resolved import Resolved, resolve_online
from harness.runs.server_session import ServerSession
from harness.schema.cancel import CancelResults, Departure, Median
from harness.schema.load import ClosedLoop
from harness.schema.online_settings import OnlineSettings
from harness.schema.setting_types import RUNNING_SERVER
from harness.traces.sampling import prompt_seed

CANCEL = "cancel.json"


class Turn(NamedTuple):
    """One slot that was handed over.

    Attributes:
        ms: From the end of the answer, or from when its client left, to the waiting request's first token.
        step_ms: Time per output token before; 0 of one chunk.
        unread: Output tokens that the server counted and nobody read; None: it does not count.
        waited: Whether the other request did wait.
    """

    ms: float
    step_ms: float
    unread: float | None
    waited: bool


def measure_cancels(
    settings: OnlineSettings, command: list[str], after: Sequence[int], slots: int, pairs: int, notify: Notify
) -> tuple[Path, CancelResults]:
    """Measure each engine, and return the folder of `cancel.json` and what is in it.

    Args:
        after: Chunks with tokens after which clients leave.
        slots: Requests that each server runs at a time: those that are started here are limited to it.
        pairs: Departures for each of `after`, each beside an answer that ends.

    Raises:
        UsageError: A setting cannot work; nothing was started.
        CleanupError: An engine could not be ended.
    """
    if any("," in addresses for addresses in settings.servers.values()):
        raise UsageError(
            "`bench cancel` needs a server of one address", "give one URL of --base-url or --server"
        )
    settings = settings.model_copy(update={"max_running_requests": slots, "calibrate": False})
    with machines_of(settings) as machines:
        resolved = resolve_online(settings, notify, machines)
        _check_lengths(resolved, after, slots)
        folder = begin_folder(settings.out, "cancel", notify)
        answer = resolved.settings.output_len
        assert isinstance(answer, int)
        results = CancelResults(
            meta=resolved.info(command), slots=slots, answer_tokens=answer, rows=[], skipped=resolved.missing
        )
        try:
            for variant in resolved.engine_variants:
                log = log_file(folder, variant.ref, "server")
                notify(EngineStarting(variant.label, log))
                try:
                    _measure_engine(resolved, variant, log, after, pairs, results)
                except CleanupError:
                    raise
                except EngineError as error:
                    results.skipped.append(variant.skipped(error.message, error.hint))
                    notify(EngineSkipped(results.skipped[-1]))
        finally:
            write_json(folder / CANCEL, results)
    return folder, results


def _measure_engine(
    resolved: Resolved,
    variant: EngineVariant,
    log: Path,
    after: Sequence[int],
    pairs: int,
    results: CancelResults,
) -> None:
    """Start an engine, and add a row for each of `after`. Raises EngineError and CleanupError."""
    engine, testbed = resolved.engines[variant.label], resolved.machines.testbeds[0]
    with testbed.serve(engine, resolved.engine_settings(variant), log) as server:
        adapted = engine.adapted(server, resolved.request_settings(variant, server.served_name))
        session = ServerSession(resolved, testbed, engine, server, adapted, engine.encoder(adapted))
        turns = _Turns(session, results.slots, results.answer_tokens)
        for count in after:
            results.rows.append(turns.departure(variant.label, count, pairs))


def _check_lengths(resolved: Resolved, after: Sequence[int], slots: int) -> None:
    """Raise UsageError for lengths of which nothing could be said."""
    settings = resolved.settings
    if not isinstance(settings.output_len, int) or not isinstance(settings.input_len, int):
        raise UsageError(
            "`bench cancel` needs answers of one length", "give --input-len and --output-len a number"
        )
    longest = settings.output_len * (2 if slots > 1 else 1)
    if settings.input_len + longest > (settings.max_model_len or 0):
        raise UsageError(
            f"{settings.input_len} + {longest} tokens exceed the context of {settings.max_model_len}",
            "lower --output-len, of which answers beside have twice as many",
        )
    if max(after) >= settings.output_len:
        raise UsageError(
            f"--after {max(after)} is the whole answer of {settings.output_len} tokens",
            "give a higher --output-len, or a lower --after",
        )


class _Turns:
    """Slots of one server that are handed over."""

    def __init__(self, session: ServerSession, slots: int, answer_tokens: int) -> None:
        self._session, self._slots, self._answer = session, slots, answer_tokens
        settings, target = session.resolved.settings, session.server.target
        self._seed = prompt_seed([settings.seed, settings.prompt_nonce or 0])
        self._addresses = resolve(target)
        self._sent = 0
        page, engine = read_samples(target), session.engine
        engines = ENGINES.values() if engine.name == RUNNING_SERVER else [engine]
        self._counter = next(
            (e.generated for e in engines if e.generated and series_values(page, e.generated)), ""
        )

    def departure(self, label: str, after: int, pairs: int) -> Departure:
        """Measure pairs of a client that leaves and an answer that ends, in turn.

        A whole answer before, beside which nothing else is answered, shows that slots are as many as said.

        Raises:
            EngineError: A request failed, or did not have to wait.
        """
        valid: list[tuple[Turn, Turn]] = []
        has_waited = self._turn(self._answer, leaves=False).waited
        for number in range(pairs if has_waited else 0):
            kinds = (True, False) if number % 2 else (False, True)
            turns = {leaves: self._turn(after, leaves) for leaves in kinds}
            if turns[True].waited and turns[False].waited and turns[True].step_ms:
                valid.append((turns[True], turns[False]))
        if not valid:
            raise EngineError(
                f"the server answered more requests at a time than --slots {self._slots} says",
                "give --slots as many as it runs at a time, or start it with that limit",
            )
        later = [left.ms - ended.ms for left, ended in valid]
        unread = [max(0.0, ms) / left.step_ms for ms, (left, _) in zip(later, valid, strict=True)]
        counted = [
            left.unread - ended.unread
            for left, ended in valid
            if left.unread is not None and ended.unread is not None
        ]
        return Departure(
            label=label,
            after=after,
            pairs=len(valid),
            left_out=pairs - len(valid),
            ended_ms=_median([ended.ms for _, ended in valid]),
            left_ms=_median([left.ms for left, _ in valid]),
            later_ms=_median(later),
            step_ms=_median([left.step_ms for left, _ in valid]),
            unread=_median(unread),
            counted=_median(counted) if counted else None,
            each_later_ms=later,
            each_unread=unread,
        )

    def _turn(self, after: int, leaves: bool) -> Turn:
        """Fill the slots, let one request wait, and one client leave, or its answer end, after so many
        tokens."""
        load, count = ClosedLoop(concurrency=self._slots + 1), self._slots + 1
        planned = self._session.resolved.workload.requests(load, self._seed, 0, self._sent, count)
        self._sent += count
        lengths = [*[2 * self._answer] * (self._slots - 1), self._answer if leaves else after, 1]
        requests = [replace(r, output_tokens=n) for r, n in zip(planned, lengths, strict=True)]
        plan, _ = self._session.plan(requests, load)
        before = self._samples()
        responses = hand_over(plan, self._addresses, after if leaves else None)
        self._session.server.check()
        times = [list(token_times(response)) for response in responses]
        if len(times) < count or not all(times):
            raise EngineError(f"a request was not answered: {_why(responses)}", "see the engine's log")
        *_, held, [first, *_] = times
        gone = responses[-2].t_end if leaves else held[-1]
        assert gone is not None
        unread = None
        if self._counter:
            unread = rise(self._counter, before, self._samples()) - sum(map(len, times))
        step_ms = 1e3 * (held[-1] - held[0]) / max(1, len(held) - 1)
        return Turn(1e3 * (first - gone), step_ms, unread, first > gone)

    def _samples(self) -> Samples:
        return read_samples(self._session.server.target) if self._counter else []


def _why(responses: Sequence[RawResponse]) -> str:
    """Return what is known of the last response."""
    last = responses[-1]
    return last.detail or b"".join(data for _, data in last.segments).decode(errors="replace")[-200:]


def _median(values: Sequence[float]) -> Median:
    ranks = order_statistics(0.5, len(values), len(values))
    ordered = sorted(values)
    return Median(
        value=float(np.median(ordered)),
        ci=None if ranks is None else (ordered[ranks[0] - 1], ordered[ranks[1] - 1]),
    )
