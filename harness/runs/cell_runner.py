"""Measures cells: warms their server up, sends each load, keeps what came back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from time import monotonic, sleep
from typing import Any

import msgspec

from harness.cluster.testbed import SentLoad
from harness.engines.prometheus import Samples, histogram_means
from harness.engines.server_metrics import ServerMonitor, known_series
from harness.errors import EngineError, LostNodeError
from harness.loadgen.load_plan import Progress
from harness.metrics.samples import Group, split
from harness.metrics.validity import clients_needed, late_alone
from harness.records.cell import CellRecords
from harness.runs.events import CellProgress, EngineWarming, LateClient, Notify, TooFewClients, WarmupProgress
from harness.runs.journal import ClientSpent
from harness.runs.run_state import Run
from harness.runs.schedule import Cell
from harness.runs.server_session import ServerSession
from harness.schema.fairness import PROMPTS_AGAIN, EngineFact
from harness.schema.load import Batch, ClosedLoop
from harness.schema.machines import MachineLoad
from harness.telemetry.gpu import Idle
from harness.traces.sampling import prompt_seed
from harness.workload import PlannedRequest

#: From "every client is ready" to the first request: connections are opened in it.
MEASURED_DELAY_S = 0.5
WARMUP_DELAY_S = 0.1
#: How long an engine without work is watched: the kernel counts CPU time in hundredths of a second.
WAITING_S = 0.5
#: Attempts at a load that keeps requests in flight, before its duration and its clients are accepted.
MAX_TRIES = 4
#: How often a cell is measured again whose client was late.
MAX_AGAIN = 2
#: Requests that are sent, relative to the estimate of how many last long enough.
MARGIN = 1.2


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


@dataclass(frozen=True)
class CellRun:
    """One sending of a cell's load.

    Attributes:
        counters_before: Samples of the server's metrics page just before.
        load: The answers, and the client processes that received them.
        records: The raw tables of the cell.
        group: Its requests as they are measured.
        machine: Load of the engine's machine meanwhile.
        server: Readings of the server's own metrics meanwhile.
    """

    counters_before: Samples
    load: SentLoad
    records: CellRecords
    group: Group
    machine: MachineLoad
    server: ServerMonitor


@dataclass(frozen=True)
class Attempt:
    """Requests of one sending of a load: `n` from `first` on (None: as many as the settings say)."""

    first: int
    n: int | None
    clients: int


@dataclass
class CellRunner:
    """Warms a server up and measures its cells. `warmed` is the largest wave of a warm-up that it has had."""

    run: Run
    session: ServerSession
    notify: Notify
    idle: Idle
    warmed: int = 0

    def begin(self, cell: Cell) -> None:
        """Warm the server up for its first cell. Raises EngineError."""
        waves = self._warmup_waves(cell)
        total = sum(map(len, waves))
        self.notify(EngineWarming(cell.engine_variant.label, self.session.server.record.ready_s, total))
        self._warm_up(waves, cell)

    def go_on(self, cell: Cell) -> None:
        """Warm the server up for a heavier load than those before. Raises EngineError."""
        self._warm_up(self._warmup_waves(cell), cell)

    def _warmup_waves(self, cell: Cell) -> list[Sequence[PlannedRequest]]:
        """Return the waves of the warm-up that the server has not had.

        A search may never come near its heaviest load, so in a closed loop it warms up for the next cell.
        """
        in_flight = cell.load.in_flight if self.run.info.search is not None else None
        waves = self.session.resolved.workload.warmup_waves(cell.load_seed, in_flight, self.warmed)
        return [self._with_drawn_fields(wave, cell) for wave in waves]

    def _warm_up(self, waves: Sequence[Sequence[PlannedRequest]], cell: Cell) -> None:
        """Raises EngineError when none of a wave's requests succeeds, nor when they are sent again: the first
        wave is one request, and a server may refuse one of many."""
        label, total, before = cell.engine_variant.label, sum(map(len, waves)), 0
        most = max(cell.load.in_flight or 0, self.session.resolved.workload.source.in_flight())
        for wave in waves:
            self.warmed = len(wave)

            def progress(progress: Progress, before: int = before) -> None:
                self.notify(WarmupProgress(label, total, before + progress.completed))

            for _ in range(2):
                plan = self.session.plan(wave, ClosedLoop(concurrency=min(len(wave), most)))
                sent = self.session.testbed.send(*plan, self._clients, progress, WARMUP_DELAY_S)
                requests = self.session.records(sent.answers, wave, cell).requests
                self.session.server.check()
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
        testbed, server = self.session.testbed, self.session.server
        label = server.record.label
        if self.run.knows(label, "idle_cores") or not server.pids:
            return
        before, begin = testbed.engine_cpu_s(server), monotonic()
        sleep(WAITING_S)
        cores = max(0.0, testbed.engine_cpu_s(server) - before) / (monotonic() - begin)
        source = f"CPU time of its processes in the {WAITING_S:g} s after the warm-up"
        self.run.keep_fact(label, "idle_cores", EngineFact(value=round(cores, 2), source=source))

    def note_prompts_again(self, cell: Cell) -> None:
        """Send a few prompts twice to a running server, once for each: whether it has a cache, its times
        tell, whatever it reports."""
        label, workload = cell.engine_variant.label, self.session.resolved.workload
        if cell.engine_variant.server is None or not workload.warmup or self.run.knows(label, PROMPTS_AGAIN):
            return
        twice, before = workload.prompts_twice(cell.load_seed), self.session.samples()
        plan = self.session.plan(twice, ClosedLoop(concurrency=1))
        answers = self.session.testbed.send(*plan, 1, None, WARMUP_DELAY_S).answers
        requests = self.session.records(answers, twice, cell).requests
        if requests["error"].notna().any():
            return
        count = self.session.prefix_count(before, self.session.samples())
        hits = (count.hits if count else 0) + requests["cached_tokens"].sum()
        ttft_ms = (1e3 * (requests["t_first"] - requests["t_sent"])).round(3).tolist()
        value = {"first_ms": ttft_ms[::2], "again_ms": ttft_ms[1::2], "cached_tokens": int(hits)}
        fact = EngineFact(value=value, source=f"{len(twice) // 2} prompts, each sent twice before the load")
        self.run.keep_fact(label, PROMPTS_AGAIN, fact)

    def measure(self, cell: Cell) -> None:
        """Send the cell's load and keep what came back.

        A load that keeps requests in flight is sent again, with more requests or from more client processes,
        until it lasts as long as the settings ask for and no client is too busy. A cell whose client was late
        is measured again.

        Raises:
            EngineError: The server was lost in the middle of the cell, or did not answer a batch.
        """
        settings = self.session.resolved.settings
        if settings.num_prompts is not None and settings.settle is not None:
            self._settle(cell, settings.settle)
        sent, late_before = self._measure(cell), list[float]()
        while len(late_before) < MAX_AGAIN and (late := late_alone(sent.group)) is not None:
            self.notify(LateClient(cell, late))
            late_before.append(float(late.values["lag_ms"]))
            if cell.engine_variant.may_know_prompts(settings.prefix_cache):
                cell = replace(cell, load_seed=prompt_seed([cell.load_seed, len(late_before)]))
            sent = self._measure(cell)
        self._keep(cell, sent, late_before)

    def _measure(self, cell: Cell) -> CellRun:
        """Send a cell's load as often as it takes to last, and by as many clients as it needs."""
        place = cell.engine_variant.label, cell.load
        attempt = Attempt(0, self.run.request_counts.get(place), self._clients)
        for tries_left in reversed(range(MAX_TRIES)):
            planned = self.session.resolved.workload.requests(
                cell.load, cell.load_seed, cell.shape_seed, attempt.first, attempt.n
            )
            sent = self._send(cell, self._with_drawn_fields(planned, cell), attempt.clients)
            following = self._following(attempt, cell, planned, sent) if tries_left else None
            if following is None:
                break
            attempt = following
        self.run.request_counts[place] = attempt.n
        return sent

    def _following(
        self, attempt: Attempt, cell: Cell, planned: Sequence[PlannedRequest], sent: CellRun
    ) -> Attempt | None:
        """Return the next attempt at a load; None where what was sent is enough, or cannot be improved.

        More requests do not make a cell valid in which one failed, and may do harm.
        """
        settings, load, answers = self.session.resolved.settings, cell.load, sent.load.answers
        if answers.failed(settings.max_error_rate) or load.in_flight is None:
            return None
        minimum_s = settings.cell_s if settings.num_prompts is None else settings.measured_s
        needed, lasts = self._clients_needed(cell, sent.records), answers.lasted_s >= minimum_s
        before = len(sent.load.usage)
        begun = sum(request.turn == 0 for request in planned)  # a session counts once
        more = min(needed, load.in_flight, begun)
        if lasts and more <= before:
            return None
        if more > before:
            self.notify(TooFewClients(cell, before, more))
            attempt = replace(attempt, clients=more)
        rounds = ceil(begun * MARGIN * minimum_s / max(answers.lasted_s, 0.01) / load.in_flight)
        may_know = cell.engine_variant.may_know_prompts(settings.prefix_cache)
        # In whole rounds: a last request alone would lower the rate.
        n = max(begun, rounds * load.in_flight)
        return replace(attempt, first=attempt.first + begun if may_know else 0, n=n)

    def _keep(self, cell: Cell, sent: CellRun, late_before: list[float]) -> None:
        """Keep a measured cell. Raises EngineError if a request of a batch failed."""
        requests = sent.records.requests
        failed = requests[requests["error"].notna()]
        if isinstance(cell.load, Batch) and len(failed):
            first = failed.iloc[0]
            raise EngineError(
                f"{cell.engine_variant.label}: {len(failed)} of {len(requests)} requests failed, the first "
                f"with {first['error']}: {first['error_detail']}",
                "look at the engine's log",
            )
        before, after = sent.counters_before, self.session.samples()
        self.run.keep(
            cell,
            replace(sent.records, server=sent.server.table(cell.index, sent.load.answers.t0)),
            sent.group,
            self.notify,
            clients=[ClientSpent(**msgspec.structs.asdict(usage)) for usage in sent.load.usage],
            prefix_cache=self.session.prefix_count(before, after),
            speculation=self.session.speculation(before, after),
            reported=histogram_means(before, after, self.session.engine.histograms),
            machine=sent.machine,
            node=self.session.testbed.node,
            senders=sent.load.hosts,
            late_before=late_before,
            prompt_nonce=None if cell.engine_variant.server is None else self.run.nonce,
        )

    def _settle(self, cell: Cell, seconds: float) -> None:
        """Send the batch of a cell for so many seconds, without keeping what comes back."""
        batch = self.session.resolved.workload.requests(cell.load, cell.load_seed, cell.shape_seed)
        begin = monotonic()
        while monotonic() - begin < seconds:
            self.session.testbed.send(
                *self.session.plan(batch, cell.load), self._clients, None, WARMUP_DELAY_S
            )
            self.session.server.check()

    @property
    def _clients(self) -> int:
        """Number of client processes, as estimated or as a cell before has needed."""
        return max(self.session.resolved.clients, self.run.clients)

    def _clients_needed(self, cell: Cell, records: CellRecords) -> int:
        """Client processes that would do for a cell, of those that may be taken; 0 where its own did, or
        requests failed."""
        most, calibration = self.run.info.most_clients, self.run.calibration
        failed = records.requests["error"].notna() & ~records.requests["tolerated"]
        if most is None or calibration is None or failed.any():
            return 0
        return min(most, clients_needed(records.requests, cell.load, calibration))

    def _send(self, cell: Cell, requests: Sequence[PlannedRequest], clients: int) -> CellRun:
        """Send a cell's requests once, and watch the machine and the server meanwhile."""

        def progress(progress: Progress) -> None:
            self.notify(CellProgress(cell, len(requests), progress))

        settings, testbed = self.session.resolved.settings, self.session.testbed
        self.session.flush(cell)
        progress(Progress(0, 0, 0))
        before = self.session.samples()
        server = ServerMonitor(
            self.session.server.target, known_series(before, self.session.series), settings.metrics_interval
        )
        with testbed.watch(self.session.server) as watch, server:
            plan, reading = self.session.plan(requests, cell.load)
            if settings.max_error_rate:
                most_failed = int(settings.max_error_rate * len(requests))
                plan = msgspec.structs.replace(plan, most_failed=most_failed)
            load = testbed.send(plan, reading, clients, progress, MEASURED_DELAY_S)
            if lasted_s := load.answers.lasted_s:
                watch.begin, watch.end = load.answers.t0, load.answers.t0 + lasted_s
        try:
            self.session.server.check()
        except EngineError as fault:
            if load.answers.answered < len(requests):  # what has answered everything was there
                raise LostError(fault, load.answers.answered, len(requests)) from None
        machine = watch.machine.model_copy(
            update={"idle_watts": self.idle.watts, "gpus_busy_before": list(self.idle.gpus_busy)}
        )
        for host in load.hosts:
            host.machine = watch.nodes.get(host.name)
        records = self.session.records(load.answers, requests, cell)
        [group] = split(records.requests, records.chunks, settings.cut)
        return CellRun(before, load, records, group, machine, server)

    def _with_drawn_fields(self, requests: Sequence[PlannedRequest], cell: Cell) -> Sequence[PlannedRequest]:
        drawn = self.session.resolved.drawn_fields
        return requests if drawn is None else drawn.draw(requests, cell.shape_seed)


#: By the kind of error of `harness.records.request_record`.
_HINTS = {
    "http_400": "change the setting that the server names; its context may be shorter than --max-model-len",
    "http_404": "check --endpoint and --served-model",
    "http_422": "the server refuses a field of the request: see its log",
    "http_429": "the server limits how much it is asked: lower the load, or --retries 5, --warmup 0",
    "wrong_length": "the server ends answers on its own: add --no-ignore-eos",
    "only_reasoning": "raise --output-len, with a trace or a dataset --max-output-len, so that an answer "
    "follows the reasoning",
    "prompt_mismatch": "the server's tokenizer is another one: name it with --tokenizer, or --tokenizer "
    "none; or it cuts prompts that exceed its context: --max-model-len",
    "no_usage": "the server must send `usage` at the end of the stream (stream_options.include_usage), or "
    "`token_ids` in every chunk; else --tokenizer names what counts its tokens",
    "truncated": "the server must end a stream with a finish_reason, or, with --ignore-eos, `data: [DONE]`",
}
_STARTED = "check --endpoint, and that `served_name` in the engine's adapter is the name of its model"
_TOO_LONG = "the server gives, or counts, more tokens than the request's max_tokens"
_ELSE = "see the engine's log, which is in the run's folder if it was started here"
#: Those that name settings, which a run that has begun keeps.
_OF_SETTINGS = {"http_404", "http_429", "wrong_length", "only_reasoning", "prompt_mismatch"}


def warmup_hint(failed: Mapping[Any, Any], started: bool) -> tuple[str, bool]:
    """Return the hint for a failed request, and whether it changes settings.

    Args:
        failed: Its row of `requests.parquet`.
        started: Whether its server was started here.
    """
    error = str(failed["error"])
    if error == "wrong_length" and failed["completion_tokens"] > failed["output_tokens"]:
        return _TOO_LONG, False
    hint = _STARTED if started and error == "http_404" else _HINTS.get(error, _ELSE)
    return hint, error in _OF_SETTINGS
