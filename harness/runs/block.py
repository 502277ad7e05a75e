"""Measures a block: one server, warmed up, and the cells that it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from time import monotonic, sleep

import msgspec
import numpy as np

from harness.cluster.testbed import Reading, Sent, Testbed
from harness.engines.base import Encoder, Engine, EngineVariant, RequestSettings, Server, endpoint_target
from harness.engines.prometheus import PrefixCounters, Samples, histograms, mean_between, read_samples
from harness.engines.registry import ENGINES
from harness.engines.request_facts import request_facts
from harness.engines.server_metrics import Series, ServerMonitor, known_series
from harness.engines.server_pages import post
from harness.engines.speculation import speculation
from harness.errors import BenchError, CleanupError, EngineError
from harness.files import now
from harness.loadgen.load_plan import LoadPlan, Progress, WireRequest
from harness.made import Made, made
from harness.metrics.prefixes import prefix_hits
from harness.metrics.summary import summarize
from harness.metrics.validity import clients_needed
from harness.plain_text import visible
from harness.records.answers import Answers
from harness.records.cell import CellIdentity, CellRecords, Expected, cell_records
from harness.records.parquet import write_cell, write_server
from harness.runs.accuracy import score_engine
from harness.runs.answers import ask_engine
from harness.runs.events import (
    CellDone,
    CellProgress,
    EngineSkipped,
    EngineStarting,
    EngineWarming,
    Notify,
    TooFewClients,
    WarmupProgress,
)
from harness.runs.folder import log_file
from harness.runs.journal import ClientSpent, JournalEntry
from harness.runs.resolved import Resolved
from harness.runs.run_state import Run
from harness.runs.schedule import Block, Cell
from harness.schema.engine_ref import RUNNING_SERVER
from harness.schema.fairness import Fact
from harness.schema.load import ClosedLoop
from harness.schema.machine_load import MachineLoad
from harness.schema.online_summary import OnlineSummary
from harness.workload import PlannedRequest
from harness.workload.prefix_reuse import reusable_tokens
from harness.workload.sessions import answered, with_answers

#: From "every client is ready" to the first request: connections are opened in it.
MEASURED_DELAY_S = 0.5
WARMUP_DELAY_S = 0.1
#: How long an engine without work is watched: the kernel counts CPU time in hundredths of a second.
WAITING_S = 0.5
#: How often a closed loop is sent, with other prompts each time, until it lasts and its clients are enough,
#: and how many more requests than its rate asks for.
MAX_TRIES, MARGIN = 4, 1.2

#: The cell that the same server measures after one; None: no more.
Following = Callable[[Cell, OnlineSummary], Cell | None]

#: What a server that takes no request of the warm-up lacks.
_HINTS = {
    "http_400": "change the setting that the server names; its context may be shorter than --max-model-len",
    "http_404": "check --endpoint and --served-model",
    "http_422": "the server refuses a field of the request: see its log",
    "http_429": "the server limits how much it is asked: lower the load, or --warmup 0",
    "wrong_length": "the server ends answers on its own: add --no-ignore-eos",
    "prompt_mismatch": "the server's tokenizer is another one: name it with --tokenizer, or --tokenizer none",
}
#: Those that name settings, which a run that has begun keeps.
_OF_SETTINGS = {"http_404", "http_429", "wrong_length", "prompt_mismatch"}


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
            measuring = _Measuring(run, resolved, notify, testbed, engine, server, asked, encode, idle)
            measuring.warm_up(left[0])
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
            if checked is not None:
                ask_engine(run, resolved, engine_variant, server, checking, asked.ignore_eos)
                score_engine(run, resolved, engine_variant, server, engine.encoder(checked))
    except CleanupError:
        raise
    except BenchError as error:
        for cell in left:
            fault = engine_variant.skipped(error.message, error.hint, load=cell.load, repeat=cell.repeat)
            fault = fault.model_copy(update={"new_run": error.new_run})
            if cell is left[0] and isinstance(error, _LostError):
                reason = f"{error.message}{error.meanwhile}"
                fault = fault.model_copy(update={"reason": reason, "cause": error.message})
            run.skip(fault)
            notify(EngineSkipped(fault))


class _LostError(EngineError):
    """A server that was lost while a cell was measured, of which so many requests were answered."""

    def __init__(self, fault: EngineError, answered: int, requests: int) -> None:
        super().__init__(fault.message, fault.hint, new_run=fault.new_run)
        self.meanwhile = (
            f"; this was in the middle of the cell: {answered} of {requests} requests had been answered, and "
            "none of them count"
        )


def _checked(engine_variant: EngineVariant, asked: RequestSettings) -> RequestSettings | None:
    """How a server is asked for what checks it; None where it cannot be.

    It is asked for completions, also where chats are measured: one model answers both. A running server that
    is asked for chats may have nothing else, and text of an unknown tokenizer is no prompt to compare.
    """
    unknown = asked.endpoint == "chat" or (asked.text and asked.tokenizer is None)
    if engine_variant.server is not None and unknown:
        return None
    return replace(asked, endpoint="completions")


@dataclass(frozen=True)
class _Measuring:
    """A server that is asked."""

    run: Run
    resolved: Resolved
    notify: Notify
    testbed: Testbed
    engine: Engine
    server: Server
    asked: RequestSettings
    encode: Encoder
    idle_watts: float | None

    def warm_up(self, cell: Cell) -> None:
        """Send the warm-up's waves. Raises EngineError when none of a wave's requests succeeds."""
        waves = [
            self._with_drawn_fields(wave, cell)
            for wave in self.resolved.workload.warmup_waves(cell.load_seed)
        ]
        label, total, before = cell.engine_variant.label, sum(map(len, waves)), 0
        self.notify(EngineWarming(label, self.server.record.ready_s, total))
        for wave in waves:

            def progress(progress: Progress, before: int = before) -> None:
                self.notify(WarmupProgress(label, total, before + progress.done))

            sent = self._send(wave, len(wave), self._clients, progress, WARMUP_DELAY_S)
            before += len(wave)
            records = self._records(sent.answers, wave, cell)
            self.server.check()
            if records.requests["error"].notna().all():
                first = records.requests.iloc[0]
                raise EngineError(
                    f"no request of the warm-up succeeded: {first['error']}: {first['error_detail']}",
                    _HINTS.get(
                        first["error"],
                        "see the engine's log, which is in the run's folder if it was started here",
                    ),
                    new_run=first["error"] in _OF_SETTINGS,
                )

    def note_waiting(self) -> None:
        """Look at what the engine's processes do while nothing is asked of them, once for each engine."""
        label = self.server.record.label
        if self.run.knows(label, "idle_cores") or not self.server.pids:
            return
        before, begin = self.testbed.engine_cpu_s(self.server), monotonic()
        sleep(WAITING_S)
        cores = max(0.0, self.testbed.engine_cpu_s(self.server) - before) / (monotonic() - begin)
        source = f"CPU time of its processes in the {WAITING_S:g} s after the warm-up"
        self.run.learn(label, "idle_cores", Fact(value=round(cores, 2), source=source))

    def _with_drawn_fields(self, requests: Sequence[PlannedRequest], cell: Cell) -> Sequence[PlannedRequest]:
        drawn = self.resolved.drawn_fields
        return requests if drawn is None else drawn.of(requests, cell.shape_seed)

    def measure(self, cell: Cell) -> OnlineSummary:
        """Send the cell's load and keep what came back. A cell that its server did not outlive is none."""
        settings = self.resolved.settings
        wanted_s = (settings.settle or 0.0) + settings.measured_s
        loop = (cell.engine_variant.label, cell.load)
        (first, n), clients = self.run.lasted.get(loop, (0, None)), self._clients
        for left in reversed(range(MAX_TRIES)):
            planned = self.resolved.workload.requests(cell.load, cell.load_seed, cell.shape_seed, first, n)
            requests = self._with_drawn_fields(planned, cell)
            before, result, machine, server = self._load(cell, requests, clients)
            answers = result.answers
            records = self._records(answers, requests, cell)
            if not left or answers.broken or not isinstance(cell.load, ClosedLoop):
                break
            in_flight, lasted_s, had = cell.load.concurrency, answers.lasted_s, len(result.usage)
            needed = self._clients_needed(cell, records)
            if lasted_s >= wanted_s and needed <= had:
                break
            sent = sum(request.after is None for request in requests)  # a session counts once
            if (more := min(needed, in_flight, sent)) > had:
                self.notify(TooFewClients(cell, had, more))
                clients = more
            elif lasted_s >= wanted_s:
                break
            rounds = sent * MARGIN * wanted_s / max(lasted_s, 0.01) / in_flight
            # In whole rounds: a last request alone would lower the rate.
            first, n = first + sent, max(sent, ceil(rounds) * in_flight)
        self.run.lasted[loop] = (first, n)
        write_cell(self.run.folder, cell.index, records)
        write_server(self.run.folder, cell.index, server.table(cell.index, answers.t0))
        after, ref, wanted = self._samples(), cell.engine_variant.ref, self.engine.histograms
        counted = (counters.count(before, after) for counters in self._counters)
        prefix_cache = next(filter(None, counted), None)
        entry = JournalEntry(
            cell=cell.index, engine=ref.name, variant=ref.variant, label=cell.engine_variant.label,
            load=cell.load, repeat=cell.repeat,
            finished=now(), requests=len(requests), failed=int(records.requests["error"].notna().sum()),
            clients=[ClientSpent(**msgspec.structs.asdict(usage)) for usage in result.usage],
            prefix_cache=prefix_cache,
            speculation=speculation(before, after),
            reported=mean_between(histograms(before, wanted), histograms(after, wanted)),
            machine=machine,
            node=self.testbed.node,
            senders=result.hosts,
            start=cell.start,
        )  # fmt: skip
        self.run.finish(entry)
        [summary, *_] = summarize(
            records.requests, records.chunks, slo=settings.slo, cut=settings.cut,
            calibration=self.run.calibration,
            machines={cell.index: machine},
            wanted_s=settings.measured_s,
            prefixes=prefix_hits(records.requests, {cell.index: prefix_cache} if prefix_cache else {}),
            drafted=entry.drafted,
        )  # fmt: skip
        self.notify(CellDone(cell, summary))
        return summary

    @property
    def _clients(self) -> int:
        """As many client processes as were estimated, or as a cell before has needed."""
        return max(self.resolved.clients, self.run.clients)

    def _clients_needed(self, cell: Cell, records: CellRecords) -> int:
        """Client processes that would do for a cell, of those that may be taken; 0 where its own did, or
        requests failed."""
        most, calibration = self.run.info.most_clients, self.run.calibration
        if most is None or calibration is None or records.requests["error"].notna().any():
            return 0
        return min(most, clients_needed(records.requests, cell.load, calibration))

    def _load(
        self, cell: Cell, requests: Sequence[PlannedRequest], clients: int
    ) -> tuple[Samples, Sent, MachineLoad, ServerMonitor]:
        """Send a cell's requests: what the server counted before, what came back, what the machine did, what
        the server said of itself."""

        def progress(progress: Progress) -> None:
            self.notify(CellProgress(cell, len(requests), progress))

        self._flush(cell)
        progress(Progress(0, 0, 0))
        before = self._samples()
        in_flight = cell.load.concurrency if isinstance(cell.load, ClosedLoop) else None
        server = ServerMonitor(
            self.server.target, known_series(before, self._series), self.resolved.settings.metrics_interval
        )
        with self.testbed.watch(self.server) as watch, server:
            sent = self._send(requests, in_flight, clients, progress, MEASURED_DELAY_S)
        try:
            self.server.check()
        except EngineError as fault:
            raise _LostError(fault, sent.answers.answered, len(requests)) from None
        power = [] if watch.begun is None else watch.machine.power_since(sent.answers.t0 - watch.begun)
        machine = watch.machine.model_copy(update={"idle_watts": self.idle_watts, "power": power})
        for host in sent.hosts:
            host.machine = watch.nodes.get(host.name)
        return before, sent, machine, server

    @property
    def _engines(self) -> list[Engine]:
        """Whose metrics the server may have: a running server's engine is not known."""
        return [self.engine, *(ENGINES.values() if self.engine.name == RUNNING_SERVER else ())]

    @property
    def _counters(self) -> list[PrefixCounters]:
        """Of the engine's prefix cache."""
        return [engine.prefix_counters for engine in self._engines if engine.prefix_counters]

    @property
    def _series(self) -> list[Series]:
        """Of the metrics that are read over time; none where these are not wanted."""
        wanted = self.resolved.settings.server_metrics
        return [engine.server_series for engine in self._engines if engine.server_series and wanted]

    def _samples(self) -> Samples:
        """What the server counts, where its engine's metrics are wanted."""
        wanted = self._counters or self.engine.histograms or self._series
        return read_samples(self.server.target) if wanted else []

    def _flush(self, cell: Cell) -> None:
        """Empty the prefix cache, so that no cell begins with what warm-up or another cell left in it."""
        flush = self.engine.flush
        if flush is not None and self.resolved.engine_settings(cell.engine_variant).caches_prefixes:
            post(self.server.target, flush)

    def _send(
        self,
        requests: Sequence[PlannedRequest],
        concurrency: int | None,
        clients: int,
        progress: Callable[[Progress], None] | None,
        start_delay_s: float,
    ) -> Sent:

        def wire(place: int) -> WireRequest:
            asked = requests[place]
            body = self.encode(asked)
            return WireRequest(asked.index, asked.t_sched_s, body, asked.after, asked.think_s, asked.answers)

        n = len(requests)
        settings, target = self.resolved.settings, endpoint_target(self.server.target, self.asked.endpoint)
        load = LoadPlan(target, made(n, wire), concurrency, settings.timeout_s, settings.deadline_s)
        exact = self.asked.ignore_eos
        wanted = made(n, lambda place: self._expected(requests[place]).wanted(exact))
        most = made(n, lambda place: requests[place].output_tokens)
        reading = Reading(wanted, self.asked.tokenizer, answered(requests), most)
        return self.testbed.send(load, reading, clients, progress, start_delay_s)

    def _expected(self, request: PlannedRequest, reusable: int | None = None) -> Expected:
        """What a request asks for."""
        counted = self.encode.input_tokens(request)
        return Expected(
            len(request.prompt) if counted is None else counted,
            request.output_tokens,
            reusable,
            exact_prompt=counted is not None and not request.answers,
            adapter=request.adapter,
            formatted=request.response_format is not None,
            session=request.session,
            turn=request.turn,
        )

    def _records(self, answers: Answers, planned: Sequence[PlannedRequest], cell: Cell) -> CellRecords:
        requests = with_answers(planned, answers.texts, self.asked.tokenizer)
        sent, reusable = answers.in_order_sent(), np.full(len(requests), -1, np.int32)
        if isinstance(requests, Made) and self.resolved.workload.is_distinct(len(requests)):
            reusable[sent] = 0
        else:
            reusable[sent] = reusable_tokens(requests[index].prompt for index in sent)

        def asked(place: int) -> Expected:
            request, before = requests[place], int(reusable[place])
            return self._expected(request, before if before >= 0 and len(request.prompt) else None)

        expected = made(len(requests), asked)
        ref, label = cell.engine_variant.ref, cell.engine_variant.label
        identity = CellIdentity(cell.index, ref.name, ref.variant, label, cell.load, cell.repeat)
        records = cell_records(answers, expected, identity)
        details = records.requests["error_detail"]
        records.requests["error_detail"] = details.map(visible, na_action="ignore")
        return records
