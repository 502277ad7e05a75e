"""The same batch through an engine's server: every prompt sent at once, timed until the last token came."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from pathlib import Path
from time import monotonic

from harness.engines.base import Encoder, EngineSettings, RequestSettings, Server
from harness.engines.local import LocalEngine
from harness.errors import EngineError
from harness.loadgen.load_plan import LoadPlan, WireRequest
from harness.loadgen.run_load import run_load
from harness.records.cell import CellIdentity, Expected, read_cell
from harness.runs.batch.measured import Measured
from harness.runs.batch.through_worker import Batch
from harness.schema.load import ClosedLoop
from harness.schema.run_info import LaunchRecord
from harness.workload import PlannedRequest

#: A batch may take so long: its last prompts wait for most of it, without a byte.
LONGEST_S = 7 * 24 * 3600.0
#: A client process is started for so many requests, of one batch or several. Its start takes a second.
MOST_REQUESTS = 10_000


def through_server(
    engine: LocalEngine,
    settings: EngineSettings,
    batch: Batch,
    log: Path,
    client_cpus: Sequence[int] | None,
) -> tuple[Measured, LaunchRecord]:
    """Time the batch, as often as it asks for, through a server of its own, which is gone afterwards.

    Raises:
        EngineError: not installed, it died, or a request failed.
    """
    with engine.open(settings, log) as server:
        body = settings.engine_variant.variant.body
        wanted = RequestSettings(
            settings.model, server.served_name, batch.ignore_eos, settings.seed, body=body
        )
        encode = engine.encoder(wanted)
        if batch.warmup:
            _send(server, batch.warmup, encode, batch.ignore_eos, client_cpus)

        def send(batches: int = 1) -> Measured:
            return _send(server, batch.requests, encode, batch.ignore_eos, client_cpus, batches)

        begin = monotonic()
        while monotonic() - begin < batch.settle_s:
            send()
        most = max(1, MOST_REQUESTS // len(batch.requests))
        return _measured(send, batch.min_s, most), server.record


def _measured(send: Callable[[int], Measured], min_s: float, most: int) -> Measured:
    """As many batches as take `min_s` seconds, at most `most` of them sent by one call."""
    measured = send(1)
    while (lacking := min_s - measured.total_s) > 0:
        measured += send(min(most, ceil(lacking * measured.batches / measured.total_s)))
    return measured


def _send(
    server: Server,
    requests: Sequence[PlannedRequest],
    encode: Encoder,
    ignore_eos: bool,
    cpus: Sequence[int] | None,
    batches: int = 1,
) -> Measured:
    """From the moment that the first prompt may be sent to the last token of the last answer, of each of
    these batches, one after the other."""
    size, bodies = len(requests), [encode(request) for request in requests]
    wire = [WireRequest(index, None, bodies[index % size]) for index in range(batches * size)]
    plan = LoadPlan(server.target, wire, size, timeout_s=LONGEST_S, deadline_s=LONGEST_S, in_batches=True)
    begin = monotonic()
    loaded = run_load(plan, cpus=cpus)
    window = begin, monotonic()
    expected = [Expected(len(request.prompt), request.output_tokens) for request in requests] * batches
    identity = CellIdentity(
        0,
        server.record.engine,
        server.record.variant,
        server.record.label,
        ClosedLoop(concurrency=size),
        0,
    )
    table = read_cell(loaded, expected, identity, exact_length=ignore_eos).requests
    failed = table[table["error"].notna()]
    if len(failed):
        server.check()
        first = failed.iloc[0]
        raise EngineError(
            f"{server.record.label}: {len(failed)} of {len(table)} requests failed, the first with "
            f"{first['error']}: {first['error_detail']}",
            "look at the engine's log",
        )
    each = table.groupby(table["request"] // size)
    taken = each["t_last"].max() - each["t_sched"].min()
    return Measured(float(taken.sum()), tuple(table["completion_tokens"].astype(int)), batches, window)
