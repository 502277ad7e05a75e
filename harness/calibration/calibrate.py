"""The calibration: highest rates, for one client process and for several, and timing errors, measured times
minus those of what the mock server did."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import accumulate, groupby, pairwise
from math import sqrt
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt
import uvloop
from pydantic import ValidationError

from harness import paths
from harness.calibration.mock_process import MockServerProcess, ask, mock_server
from harness.engines.placement import CpuSplit, physical_cores, split
from harness.errors import BenchError
from harness.files import now, write_json
from harness.loadgen.load_plan import LoadPlan, LoadResult, RawResponse
from harness.loadgen.run_load import run_load
from harness.mock_server.script import Behaviour, ServedRequest, chunk_sizes
from harness.records.request_record import read_request
from harness.schema.machines import Calibration, ClientCeiling, MachineKey, Spread, TimingError
from harness.telemetry.machine import cpu

#: The next rate is the one at which the client would be this busy, estimated from the last trial ...
BUSY = 0.9
#: ... within these factors of the last rate.
LEAST_STEP, MOST_STEP = 1.25, 3.0
MOST_TRIALS = 12
#: Trials between the highest rate that succeeded and the lowest that failed.
REFINEMENTS = 2
BEHAVIOUR: Mapping[str, object] = {"ttft_ms": 40.0, "itl_ms": 5.0, "empty_first": True}
#: When a request was received, and the time and the tokens of each chunk.
Written = tuple[float, list[tuple[float, int]]]
UNPINNED = CpuSplit(None, None)


def measure_ceiling(
    *, processes: int, seconds: float, cpus: CpuSplit, start: tuple[float, float]
) -> ClientCeiling:
    """Search the highest chunk and request rates of `processes` client processes.

    Args:
        seconds: Length of each trial.
        start: Chunks and requests a second to begin with.

    Raises:
        BenchError: The client does not keep up with any rate.
    """
    chunks, limit = search(lambda rate: try_chunks(rate, seconds, processes, cpus), start[0])
    requests, _ = search(lambda rate: try_requests(rate, seconds, processes, cpus), start[1])
    return ClientCeiling(
        processes=processes,
        chunks_per_s=round(chunks.reached),
        chunks_per_cpu_s=round(chunks.reached / chunks.busy),
        requests_per_s=round(requests.reached),
        limit=limit,
    )


def search(
    attempt: Callable[[float], Trial], start: float, refinements: int = REFINEMENTS
) -> tuple[Trial, Limit]:
    """The best trial that the client kept up with, and what limits higher rates.

    A rate with which the client did not keep up is tried once more: other work on the machine may have
    disturbed it.

    Raises:
        BenchError: It kept up with none of the rates.
    """
    best: Trial | None = None
    too_much: Trial | None = None
    rate = start
    for _ in range(MOST_TRIALS + refinements):
        trial = _try_rate(attempt, rate)
        if trial.limited_by != "client" and (best is None or trial.reached > best.reached):
            best = trial
        if trial.limited_by is not None:
            too_much = trial
        if best is None:
            rate /= 2
        elif too_much is None:
            rate = trial.offered * min(max(BUSY / trial.busy, LEAST_STEP), MOST_STEP)
        elif refinements == 0 or best is too_much:
            break
        else:
            refinements -= 1
            rate = sqrt(best.offered * too_much.offered)
    if best is None:
        raise BenchError(
            "the client keeps up with no rate on this machine", "stop other programs and try again"
        )
    return best, (too_much and too_much.limited_by) or "client"


def _try_rate(attempt: Callable[[float], Trial], rate: float) -> Trial:
    """One trial, or the better of two if the client did not keep up in the first."""
    first = attempt(rate)
    if first.limited_by != "client":
        return first
    second = attempt(rate)
    return max(first, second, key=lambda trial: (_RANK[trial.limited_by], trial.reached))


#: A trial in which the client kept up is better than one in which it did not.
_RANK: dict[Limit | None, int] = {None: 2, "server": 1, "client": 0}


Limit = Literal["client", "server"]

#: Gap between the chunks of a stream. A chunk that is not read in this time is read together with the next.
CHUNK_GAP_MS = 8.0
#: The client counts as too slow if more than this share of chunks is read together with another.
MOST_MERGED = 0.02
#: The server counts as too slow below this share of the offered rate.
LEAST_REACHED = 0.95

REQUEST_TOKENS = 8
REQUEST_TTFT_MS = 100.0
REQUEST_GAP_MS = 2.0
#: The limit of a cell's submit lag (metrics/validity.py) at this TTFT.
MOST_LAG_S = 0.05 * REQUEST_TTFT_MS / 1e3
#: A trial is judged by what most of these parts of it say: one pause of the machine is not the client's.
PARTS = 5
#: Time to open connections, at most one or two thousand.
START_DELAY_S = 0.3
#: The server counts as too slow if an answer takes longer than it should by more than this factor.
MOST_STRETCH = 1.5


@dataclass(frozen=True)
class Trial:
    """The result of a rate. All rates are for one client process; `busy` is the share of time that a process
    spent on the CPU; `limited_by` is None if client and server kept up."""

    offered: float
    reached: float
    busy: float
    limited_by: Limit | None


def try_chunks(rate: float, seconds: float, processes: int, cpus: CpuSplit) -> Trial:
    """Run `processes` clients, each reading `rate` chunks a second from its own mock server.

    The starts of a client's streams are spread over the gap between two chunks, so that chunks arrive evenly.
    """
    streams = max(1, round(rate * CHUNK_GAP_MS / 1e3))
    tokens = max(2, round(seconds * 1e3 / CHUNK_GAP_MS))

    def plan(mock: MockServerProcess) -> LoadPlan:
        paced = {"itl_ms": CHUNK_GAP_MS, "usage": "none", "done": False}
        begins = [CHUNK_GAP_MS * (1 + index / streams) for index in range(streams)]
        wire = [ask(index, tokens, paced | {"ttft_ms": begin}, None) for index, begin in enumerate(begins)]
        return LoadPlan(mock.target, wire, concurrency=streams)

    def reached(result: LoadResult, served_requests: dict[int, ServedRequest]) -> tuple[float, Limit | None]:
        first = min(served.writes[0][0] for served in served_requests.values())
        last = max(served.writes[-1][0] for served in served_requests.values())
        reads = tokens + 1  # the head
        merged = sum(max(0, reads - len(response.segments)) for response in result.responses)
        speed = streams * tokens / (last - first)
        if merged > MOST_MERGED * streams * tokens:
            return speed, "client"
        return speed, "server" if speed < LEAST_REACHED * rate else None

    return _attempt(rate, processes, cpus, plan, reached, "--keep-gaps")


def try_requests(rate: float, seconds: float, processes: int, cpus: CpuSplit) -> Trial:
    """Run `processes` clients, each sending `rate` requests a second by schedule, REQUEST_TOKENS tokens
    each."""
    count = max(2, round(rate * seconds))
    behaviour = {"ttft_ms": REQUEST_TTFT_MS, "itl_ms": REQUEST_GAP_MS}
    answer_s = (REQUEST_TTFT_MS + REQUEST_GAP_MS * (REQUEST_TOKENS - 1)) / 1e3

    def plan(mock: MockServerProcess) -> LoadPlan:
        return LoadPlan(
            mock.target, [ask(i, REQUEST_TOKENS, behaviour, i / rate) for i in range(count)], timeout_s=30.0
        )

    def reached(result: LoadResult, served_requests: dict[int, ServedRequest]) -> tuple[float, Limit | None]:
        responses = sorted(result.responses, key=lambda response: response.index)
        sent = np.array([response.t_sent for response in responses], dtype=np.float64)
        lag = sent - [response.t_sched for response in responses]
        read_late = np.array([response.t_end for response in responses], dtype=np.float64) - [
            served_requests[response.index].t_end for response in responses
        ]
        took = [served.t_end - served.t_received for served in served_requests.values()]
        speed = min(rate, (count - 1) / float(sent.max() - sent.min()))  # the first may be sent late
        if usual_p99(lag) > MOST_LAG_S or np.median(read_late) > MOST_LAG_S:
            return speed, "client"
        return speed, "server" if np.median(took) > MOST_STRETCH * answer_s else None

    return _attempt(rate, processes, cpus, plan, reached)


def usual_p99(lags: npt.NDArray[np.float64]) -> float:
    """Median of the 99th percentiles of the PARTS of a trial, in s.

    Args:
        lags: (requests,) in s, in the order of the requests.
    """
    return float(np.median([np.percentile(part, 99) for part in np.array_split(lags, PARTS) if part.size]))


def _attempt(
    rate: float,
    processes: int,
    cpus: CpuSplit,
    plan: Callable[[MockServerProcess], LoadPlan],
    reached: Callable[[LoadResult, dict[int, ServedRequest]], tuple[float, Limit | None]],
    *options: str,
) -> Trial:
    """Run one client and one mock server for each of `processes`, all at once; the slowest one counts."""
    with ExitStack() as stack:
        servers = [stack.enter_context(mock_server(*options, cpus=cpus.engine)) for _ in range(processes)]

        def run(number: int) -> LoadResult:
            core = [cpus.client[number % len(cpus.client)]] if cpus.client else None
            return run_load(plan(servers[number]), cpus=core, start_delay_s=START_DELAY_S)

        with ThreadPoolExecutor(processes) as threads:
            results = list(threads.map(run, range(processes)))
        for response in (response for result in results for response in result.responses):
            if response.error is not None:
                raise BenchError(f"a request to the mock server failed: {response.detail}")
        ceilings = [
            reached(result, server.served_requests()) for result, server in zip(results, servers, strict=True)
        ]
    usage = [result.usage[0] for result in results]
    faults = [fault for _, fault in ceilings if fault is not None]
    return Trial(
        offered=rate,
        reached=min(speed for speed, _ in ceilings),
        busy=max(client.cpu_s / client.wall_s for client in usage),
        limited_by=("client" if "client" in faults else "server") if faults else None,
    )


FIRST_CHUNKS_PER_S, FIRST_REQUESTS_PER_S = 40_000.0, 2_000.0
#: Client processes of the second measurement if the client has no cores of its own.
SEVERAL = 2

ReportStatus = Callable[[str], None]


def calibrate(*, quick: bool, report_status: ReportStatus) -> Calibration:
    """Measure the client on this machine and store the result.

    Args:
        quick: One client process and short trials: about 20 s instead of about 50.
        report_status: Called with what is being measured.

    Raises:
        BenchError: The machine is too busy, or the client failed.
    """
    cpus = split(physical_cores())
    several = len(cpus.client) if cpus.client else SEVERAL
    counts = [1] if quick else sorted({1, several})
    ceilings: list[ClientCeiling] = []
    errors: list[TimingError] = []
    for processes in counts:
        report_status(f"ceiling of {processes} client {'process' if processes == 1 else 'processes'}")
        start = (FIRST_CHUNKS_PER_S, FIRST_REQUESTS_PER_S)
        if ceilings:
            start = (ceilings[-1].chunks_per_s / 2, ceilings[-1].requests_per_s / 2)
        seconds = 0.5 if quick else 1.0
        ceilings.append(measure_ceiling(processes=processes, seconds=seconds, cpus=cpus, start=start))
        for concurrency in [8] if quick else [8, 32]:
            report_status(f"timing error of {processes}, {concurrency} requests in flight")
            count, tokens = (64, 16) if quick else (200, 32)
            accuracy = measure_accuracy(
                processes=processes, concurrency=concurrency, requests=count, tokens=tokens, cpus=cpus
            )
            errors.append(accuracy.error(processes, concurrency))
    calibration = Calibration(
        machine=this_machine(), created=now(), quick=quick, ceilings=ceilings, errors=errors
    )
    write_json(stored_at(), calibration)
    return calibration


def stored_at() -> Path:
    """The file in the cache that holds the calibration of this machine."""
    return paths.cache_folder() / "calibration.json"


def this_machine() -> MachineKey:
    """The machine and software that this process runs on."""
    return MachineKey(
        cpu=str(cpu()["model"]),
        cores=len(os.sched_getaffinity(0)),
        kernel=platform.release(),
        python=platform.python_version(),
        uvloop=uvloop.__version__,
    )


def load() -> Calibration | None:
    """The stored calibration, if there is one for this machine."""
    try:
        calibration = Calibration.model_validate_json(stored_at().read_bytes())
    except (OSError, ValidationError):
        return None
    return calibration if calibration.machine == this_machine() else None


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
