"""Searches the highest rates that the client sustains."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

from harness.calibration.rate_trials import Limit, Trial, try_chunks, try_requests
from harness.engines.cores import CpuSplit
from harness.errors import BenchError
from harness.schema.calibration import ClientCeiling

#: The next rate is the one at which the client would be this busy, estimated from the last trial ...
BUSY = 0.9
#: ... within these factors of the last rate.
LEAST_STEP, MOST_STEP = 1.25, 3.0
MOST_TRIALS = 12
#: Trials between the highest rate that succeeded and the lowest that failed.
REFINEMENTS = 2


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
