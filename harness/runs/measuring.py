"""Measures cells: warms their server up, sends each load, keeps what came back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from time import monotonic, sleep

import msgspec

from harness.cluster.testbed import Sent
from harness.engines.prometheus import Samples, histograms, mean_between
from harness.engines.server_metrics import ServerMonitor, known_series
from harness.errors import EngineError, LostNodeError
from harness.files import now
from harness.loadgen.load_plan import Progress
from harness.metrics.prefixes import prefix_hits
from harness.metrics.summary import summarize
from harness.metrics.validity import clients_needed
from harness.records.cell import CellRecords
from harness.records.parquet import write_cell, write_server
from harness.runs.asked_server import AskedServer
from harness.runs.events import (
    CellDone,
    CellProgress,
    EngineWarming,
    Notify,
    TooFewClients,
    WarmupProgress,
)
from harness.runs.journal import ClientSpent, JournalEntry
from harness.runs.run_state import Run
from harness.runs.schedule import Cell
from harness.runs.warmup_hints import warmup_hint
from harness.schema.fairness import EngineFact
from harness.schema.load import ClosedLoop
from harness.schema.machines import MachineLoad
from harness.schema.online_summary import OnlineSummary
from harness.telemetry.idle import Idle
from harness.workload import PlannedRequest

#: From "every client is ready" to the first request: connections are opened in it.
MEASURED_DELAY_S = 0.5
WARMUP_DELAY_S = 0.1
#: How long an engine without work is watched: the kernel counts CPU time in hundredths of a second.
WAITING_S = 0.5
#: How often a closed loop is sent, with other prompts each time, until it lasts and its clients are enough,
#: and how many more requests than its rate asks for.
MAX_TRIES, MARGIN = 4, 1.2


class LostError(EngineError):
    """A server that was lost while a cell was measured, of which so many requests were answered. `node`: so
    was its node."""

    def __init__(self, fault: EngineError, answered: int, requests: int) -> None:
        super().__init__(fault.message, fault.hint, new_run=fault.new_run)
        self.node = isinstance(fault, LostNodeError)
        self.meanwhile = (
            f"; this was in the middle of the cell: {answered} of {requests} requests had been answered, and "
            "none of them count"
        )


@dataclass
class Measuring:
    """A server whose cells are measured. `warmed` is the largest wave of a warm-up that it has had."""

    run: Run
    to: AskedServer
    notify: Notify
    idle: Idle
    warmed: int = 0

    def begin(self, cell: Cell) -> None:
        """Warm the server up for its first cell. Raises EngineError."""
        waves = self._warmup_waves(cell)
        total = sum(map(len, waves))
        self.notify(EngineWarming(cell.engine_variant.label, self.to.server.record.ready_s, total))
        self._warm_up(waves, cell)

    def go_on(self, cell: Cell) -> None:
        """Warm the server up for a heavier load than those before. Raises EngineError."""
        self._warm_up(self._warmup_waves(cell), cell)

    def _warmup_waves(self, cell: Cell) -> list[Sequence[PlannedRequest]]:
        """What of the warm-up the server has not had. A search may never come near its heaviest load, so in a
        closed loop it warms up for the cell that is next."""
        searched = self.run.info.search is not None
        in_flight = cell.load.concurrency if searched and isinstance(cell.load, ClosedLoop) else None
        waves = self.to.resolved.workload.warmup_waves(cell.load_seed, in_flight, self.warmed)
        return [self._with_drawn_fields(wave, cell) for wave in waves]

    def _warm_up(self, waves: Sequence[Sequence[PlannedRequest]], cell: Cell) -> None:
        """Raises EngineError when none of a wave's requests succeeds, nor when they are sent again: the first
        wave is one request, and a server may refuse one of many."""
        label, total, before = cell.engine_variant.label, sum(map(len, waves)), 0
        for wave in waves:
            self.warmed = len(wave)

            def progress(progress: Progress, before: int = before) -> None:
                self.notify(WarmupProgress(label, total, before + progress.done))

            for _ in range(2):
                sent = self.to.send(wave, len(wave), self._clients, progress, WARMUP_DELAY_S)
                requests = self.to.records(sent.answers, wave, cell).requests
                self.to.server.check()
                if requests["error"].isna().any():
                    break
            before += len(wave)
            if requests["error"].notna().all():
                first = requests.iloc[0].to_dict()
                hint, of_settings = warmup_hint(first, cell.engine_variant.server is None)
                raise EngineError(
                    f"no request of the warm-up succeeded: {first['error']}: {first['error_detail']}",
                    hint,
                    new_run=of_settings,
                )

    def note_waiting(self) -> None:
        """Look at what the engine's processes do while nothing is asked of them, once for each engine."""
        testbed, server = self.to.testbed, self.to.server
        label = server.record.label
        if self.run.knows_idle_cores(label) or not server.pids:
            return
        before, begin = testbed.engine_cpu_s(server), monotonic()
        sleep(WAITING_S)
        cores = max(0.0, testbed.engine_cpu_s(server) - before) / (monotonic() - begin)
        source = f"CPU time of its processes in the {WAITING_S:g} s after the warm-up"
        self.run.keep_idle_cores(label, EngineFact(value=round(cores, 2), source=source))

    def measure(self, cell: Cell) -> OnlineSummary:
        """Send the cell's load and keep what came back. A cell that its server did not outlive is none."""
        settings, workload = self.to.resolved.settings, self.to.resolved.workload
        wanted_s = settings.cell_s
        loop = (cell.engine_variant.label, cell.load)
        may_know = cell.engine_variant.may_know_prompts(settings.prefix_cache)
        first, n, clients = 0, self.run.lasted.get(loop), self._clients
        for left in reversed(range(MAX_TRIES)):
            planned = workload.requests(cell.load, cell.load_seed, cell.shape_seed, first, n)
            requests = self._with_drawn_fields(planned, cell)
            before, result, machine, server = self._load(cell, requests, clients)
            answers = result.answers
            records = self.to.records(answers, requests, cell)
            if not left or answers.failed or not isinstance(cell.load, ClosedLoop):
                break  # more requests do not make a cell valid in which one failed, and may do harm
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
            first, n = first + sent if may_know else 0, max(sent, ceil(rounds) * in_flight)
        self.run.lasted[loop] = n
        write_cell(self.run.folder, cell.index, records)
        write_server(self.run.folder, cell.index, server.table(cell.index, answers.t0))
        after, ref, wanted = self.to.samples(), cell.engine_variant.ref, self.to.engine.histograms
        counted = (counters.count(before, after) for counters in self.to.counters)
        prefix_cache = next(filter(None, counted), None)
        entry = JournalEntry(
            cell=cell.index, engine=ref.name, variant=ref.variant, label=cell.engine_variant.label,
            load=cell.load, repeat=cell.repeat,
            finished=now(), requests=len(requests), failed=int(records.requests["error"].notna().sum()),
            clients=[ClientSpent(**msgspec.structs.asdict(usage)) for usage in result.usage],
            prefix_cache=prefix_cache,
            speculation=self.to.speculation(before, after),
            reported=mean_between(histograms(before, wanted), histograms(after, wanted)),
            machine=machine,
            node=self.to.testbed.node,
            senders=result.hosts,
            prompt_nonce=None if cell.engine_variant.server is None else self.run.nonce,
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
        return max(self.to.resolved.clients, self.run.clients)

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

        settings, testbed = self.to.resolved.settings, self.to.testbed
        self.to.flush(cell)
        progress(Progress(0, 0, 0))
        before = self.to.samples()
        in_flight = cell.load.concurrency if isinstance(cell.load, ClosedLoop) else None
        server = ServerMonitor(
            self.to.server.target, known_series(before, self.to.series), settings.metrics_interval
        )
        with testbed.watch(self.to.server) as watch, server:
            sent = self.to.send(requests, in_flight, clients, progress, MEASURED_DELAY_S)
            if lasted_s := sent.answers.lasted_s:
                watch.begin, watch.end = sent.answers.t0, sent.answers.t0 + lasted_s
        try:
            self.to.server.check()
        except EngineError as fault:
            if sent.answers.answered < len(requests):  # what has answered everything was there
                raise LostError(fault, sent.answers.answered, len(requests)) from None
        machine = watch.machine.model_copy(
            update={"idle_watts": self.idle.watts, "gpus_busy_before": list(self.idle.gpus_busy)}
        )
        for host in sent.hosts:
            host.machine = watch.nodes.get(host.name)
        return before, sent, machine, server

    def _with_drawn_fields(self, requests: Sequence[PlannedRequest], cell: Cell) -> Sequence[PlannedRequest]:
        drawn = self.to.resolved.drawn_fields
        return requests if drawn is None else drawn.draw(requests, cell.shape_seed)
