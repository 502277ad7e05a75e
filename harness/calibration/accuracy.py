"""The client's timing error: what it measured minus what the mock server did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate, groupby, pairwise

import msgspec
import numpy as np

from harness.calibration.mock_process import ask, mock_server
from harness.engines.placement import CpuSplit
from harness.errors import BenchError
from harness.loadgen.load_plan import LoadPlan, RawResponse
from harness.loadgen.run_load import run_load
from harness.mock_server.script import Behaviour, ServedRequest, chunk_sizes
from harness.records.request_record import read_request
from harness.schema.machines import Spread, TimingError

BEHAVIOUR: Mapping[str, object] = {"ttft_ms": 40.0, "itl_ms": 5.0, "empty_first": True}
#: When a request was received, and the time and the tokens of each chunk.
Written = tuple[float, list[tuple[float, int]]]
UNPINNED = CpuSplit(None, None)


@dataclass
class Times:
    """Metrics of all requests, in ms: TTFT, TPOT and E2E for each request, ITL for each token after the
    first."""

    ttft: list[float] = field(default_factory=list)
    tpot: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)
    e2e: list[float] = field(default_factory=list)

    def add(self, begin: float, chunks: list[tuple[float, int]]) -> None:
        """Add a request that began at `begin`, with chunks (time, tokens)."""
        first, last = chunks[0][0], chunks[-1][0]
        self.ttft.append((first - begin) * 1e3)
        self.e2e.append((last - begin) * 1e3)
        self.tpot.append((last - first) * 1e3 / max(1, sum(tokens for _, tokens in chunks[1:])))
        self.itl += token_gaps(chunks)


def token_gaps(chunks: list[tuple[float, int]]) -> list[float]:
    """ITL in ms of each token after the first chunk."""
    return [
        (now - before) * 1e3 / tokens
        for (before, _), (now, tokens) in pairwise(chunks)
        for _ in range(tokens)
    ]


@dataclass(frozen=True)
class Accuracy:
    """A load as measured and as it truly was, requests in the same order.

    A client that reads the first chunks at once has no ITL for their tokens, so `itl_error`, in ms, is of the
    tokens for which both sides have one.
    """

    measured: Times
    true: Times
    itl_error: list[float]
    submit_lag: list[float]

    def error(self, processes: int, concurrency: int) -> TimingError:
        """The differences, sample by sample."""
        return TimingError(
            processes=processes,
            concurrency=concurrency,
            requests=len(self.submit_lag),
            ttft_error_ms=_spread(np.subtract(self.measured.ttft, self.true.ttft)),
            itl_error_ms=_spread(np.asarray(self.itl_error)),
            submit_lag_ms=_spread(np.asarray(self.submit_lag)),
        )


def measure_accuracy(
    *,
    processes: int,
    concurrency: int,
    requests: int,
    tokens: int,
    behaviour: Mapping[str, object] = BEHAVIOUR,
    cpus: CpuSplit = UNPINNED,
) -> Accuracy:
    """Keep `concurrency` requests in flight and compare the times of both sides.

    Raises:
        BenchError: A request failed.
    """
    with mock_server(cpus=cpus.engine) as mock:
        wire = [ask(index, tokens, behaviour, None) for index in range(requests)]
        plan = LoadPlan(mock.target, wire, concurrency)
        result = run_load(plan, clients=processes, cpus=cpus.client)
        served_requests = mock.served_requests()
    accuracy = Accuracy(Times(), Times(), [], [])
    for response in result.responses:
        _add(accuracy, response, _written(served_requests[response.index], behaviour, tokens), tokens)
    return accuracy


def _written(served: ServedRequest, behaviour: Mapping[str, object], tokens: int) -> Written:
    """Return when a request was received and its chunks were written: one write is one chunk; of chunks whose
    tokens are written one by one, the last write, of the first chunk the first one."""
    chunks = [
        (t, sum(tokens for _, tokens in same))
        for t, same in groupby(served.writes, key=lambda write: write[0])
    ]
    behaviour_asked = msgspec.convert(behaviour, Behaviour)
    if behaviour_asked.split_writes:
        sizes = chunk_sizes(behaviour_asked, tokens)
        times = [t for t, k in served.writes for _ in range(k)]
        chunks = [(times[end - 1], size) for end, size in zip(accumulate(sizes), sizes, strict=True)]
        chunks[0] = (times[0], sizes[0])
    return served.t_received, chunks


def _add(accuracy: Accuracy, response: RawResponse, truth: Written, tokens: int) -> None:
    record = read_request(response, tokens)
    if record.error is not None or response.t_sent is None:
        raise BenchError(f"a request to the mock server failed: {record.error}: {record.error_detail}")
    received, written = truth
    accuracy.measured.add(response.t_sent, record.chunks)
    accuracy.true.add(received, written)
    measured, true = token_gaps(record.chunks), token_gaps(written)
    both = min(len(measured), len(true))
    accuracy.itl_error.extend(
        np.subtract(measured[len(measured) - both :], true[len(true) - both :]).tolist()
    )
    accuracy.submit_lag.append((response.t_sent - response.t_sched) * 1e3)


def _spread(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Spread:
    p50, p99 = np.percentile(values, [50, 99])
    return Spread(p50=round(float(p50), 4), p99=round(float(p99), 4))
