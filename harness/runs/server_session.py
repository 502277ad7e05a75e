"""A session with a server: loads that are sent to it, and the answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import uuid4

import numpy as np

from harness.cluster.testbed import Reading, Testbed
from harness.engines.base import TYPED, Encoder, Engine, RequestSettings, Server, endpoint_target
from harness.engines.prometheus import Samples, Series, prefix_count, read_samples
from harness.engines.registry import ENGINES
from harness.engines.server_pages import post
from harness.loadgen.load_plan import LoadPlan, WireRequest
from harness.plain_text import visible
from harness.records.cell import Answers, CellRecords, Expected, cell_records
from harness.records.stream import StreamFields
from harness.runs.resolved import Resolved
from harness.runs.schedule import Cell
from harness.schema.load import Batch, Load
from harness.schema.results import PrefixCount, SpeculationCount
from harness.schema.setting_types import RUNNING_SERVER
from harness.workload import PlannedRequest
from harness.workload.dataset_content import answered, with_answers
from harness.workload.planned_requests import reusable_tokens

#: How long a batch may take: its last prompts wait for most of it, without a byte.
BATCH_TIMEOUT_S = 7 * 24 * 3600.0


@dataclass(frozen=True)
class ServerSession:
    """A server with `request_settings`; `encode` makes the bodies of its requests."""

    resolved: Resolved
    testbed: Testbed
    engine: Engine
    server: Server
    request_settings: RequestSettings
    encode: Encoder

    @property
    def series(self) -> list[Series]:
        """Series of the metrics that are read over time; none where these are not wanted."""
        if not self.resolved.settings.server_metrics or self.server.target.others:
            return []
        return [engine.server_series for engine in self._engines if engine.server_series]

    @property
    def fields(self) -> StreamFields:
        """Fields of its streams: those that may have each of the times that an engine measures, or text."""
        names: dict[str, list[str]] = {}
        for engine in self._engines:
            for metric, name in engine.response_times.items():
                names.setdefault(metric, []).append(name)
        asked_as = self.request_settings
        typed = asked_as.endpoint in TYPED
        return StreamFields(names, self.resolved.settings.content_field, asked_as.served_name, typed)

    def prefix_count(self, before: Samples, after: Samples) -> PrefixCount | None:
        """Count prompt tokens from prefix caches between two readings of the server's metrics."""
        if self.server.target.others:  # each address has a page of its own
            return None
        counts = (
            prefix_count(engine.server_series, engine.cache_hits, before, after) for engine in self._engines
        )
        return next(filter(None, counts), None)

    def speculation(self, before: Samples, after: Samples) -> SpeculationCount | None:
        """Count drafted tokens between two readings of the server's metrics."""
        counts = (engine.speculation(before, after) for engine in self._engines)
        return next(filter(None, counts), None)

    def samples(self) -> Samples:
        """Read the server's metrics, if any of them are wanted."""
        counting = any("prefix_hits" in engine.server_series for engine in self._engines)
        is_wanted = counting or self.engine.histograms or self.series
        return read_samples(self.server.target) if is_wanted else []

    def flush(self, cell: Cell) -> None:
        """Empty the prefix cache, so that no cell begins with what warm-up or another cell left in it."""
        flush = self.engine.flush
        if flush is not None and self.resolved.engine_settings(cell.engine_variant).caches_prefixes:
            post(self.server.target, flush)

    def plan(self, requests: Sequence[PlannedRequest], load: Load) -> tuple[LoadPlan, Reading]:
        """Return requests as they are sent, and how their answers are read.

        Args:
            load: Says whether requests are sent at their times, or kept in flight, or all at once.
        """
        settings, asked_as = self.resolved.settings, self.request_settings
        wire = [
            WireRequest(
                r.index, r.t_sched_s, self.encode(r), r.after, r.think_s, r.answers, r.output_tokens, *way,
                r.session,
            )
            for r, way in zip(requests, self._ways(requests), strict=True)
        ]  # fmt: skip
        memory = None if settings.max_memory is None else int(settings.max_memory * 2**30)
        batch = isinstance(load, Batch)
        timeout_s, deadline_s = (
            (BATCH_TIMEOUT_S, BATCH_TIMEOUT_S) if batch else (settings.timeout_s, settings.deadline_s)
        )
        target = endpoint_target(self.server.target, asked_as.endpoint)
        expected = [self._expected(request).wanted(asked_as.ignore_eos) for request in requests]
        most = [request.output_tokens for request in requests]
        return (
            LoadPlan(target, wire, load.in_flight, timeout_s, deadline_s, batch, memory, settings.retries),
            Reading(expected, asked_as.tokenizer, answered(requests), most, self.fields),
        )

    def _ways(self, requests: Sequence[PlannedRequest]) -> Iterator[tuple[int, str]]:
        """Yield the place of each request's address, and its header for routing: those of its session where
        these are sticky, else its own."""
        settings, places = self.resolved.settings, len(self.server.target.all)
        record = self.server.record
        is_sticky = settings.of_server(settings.route, record.side_of or record.label) == "sticky"
        name, load = settings.session_header, uuid4().hex[:12]  # nothing is known of another load's
        for r in requests:
            number = r.session if is_sticky and r.session is not None else r.index
            yield number % places, f"{name}: {load}-{number}" if name else ""

    def records(self, answers: Answers, planned: Sequence[PlannedRequest], cell: Cell) -> CellRecords:
        """Make the records of a cell from the answers to its planned requests."""
        requests = with_answers(planned, answers.texts, self.request_settings.tokenizer)
        sent, reusable = answers.in_order_sent(), np.full(len(requests), -1, np.int32)
        if isinstance(cell.load, Batch):
            pass  # the same prompts again, which no cache may have
        elif self.resolved.workload.is_distinct(len(requests)):
            reusable[sent] = 0
        else:
            reusable[sent] = reusable_tokens(requests[index].prompt for index in sent)
        expected = [
            self._expected(request, before if before >= 0 and len(request.prompt) else None)
            for request, before in zip(requests, reusable.tolist(), strict=True)
        ]
        records = cell_records(answers, expected, cell.identity)
        is_tolerated = not answers.failed(self.resolved.settings.max_error_rate)
        records.requests["tolerated"] = records.requests["error"].notna() & is_tolerated
        details = records.requests["error_detail"]
        records.requests["error_detail"] = details.map(visible, na_action="ignore")
        return records

    def _expected(self, request: PlannedRequest, reusable: int | None = None) -> Expected:
        """State what the answer to a request must have."""
        counted = self.encode.input_tokens(request)
        return Expected(
            len(request.prompt) if counted is None else counted,
            request.output_tokens,
            reusable,
            exact_prompt=counted is not None and not request.answers,
            adapter=request.adapter,
            category=request.category,
            formatted=request.response_format is not None,
            session=request.session,
            turn=None if request.session is None else request.turn,
            after=request.after,
            tools=request.tools,
        )

    @property
    def _engines(self) -> list[Engine]:
        """Engines whose metrics the server may have: that of a running server is unknown."""
        return [self.engine, *(ENGINES.values() if self.engine.name == RUNNING_SERVER else ())]
