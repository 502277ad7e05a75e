"""The highest rate that the client sustains, searched for by trial."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

from harness.calibration.rate_trials import Limit, Trial, try_chunks, try_requests
from harness.engines.cores import CpuSplit
from harness.errors import BenchError
from harness.schema.calibration import ClientCeiling

#: The next rate is the one at which the client would be this busy, as the last trial tells ...
BUSY = 0.9
#: ... within these factors of the last.
LEAST_STEP, MOST_STEP = 1.25, 3.0
MOST_TRIALS = 12
#: Trials between the highest rate that held and the lowest that did not.
REFINEMENTS = 2


def measure_ceiling(
    *, processes: int, seconds: float, cpus: CpuSplit, start: tuple[float, float]
) -> ClientCeiling:
    """Search both ceilings of `processes` client processes.

    Args:
        seconds: Length of each trial.
        start: Chunks and requests a second to begin with.

    Raises:
        BenchError: Not even a small rate holds.
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
    """The best trial that the client kept up with, and what gave way above it.

    A rate that does not hold is tried once more: other work on the machine may have come between.

    Raises:
        BenchError: It kept up with none of the rates.
    """
    best: Trial | None = None
    too_much: Trial | None = None
    rate = start
    for _ in range(MOST_TRIALS + refinements):
        trial = _twice(attempt, rate)
        if trial.gave_way != "client" and (best is None or trial.reached > best.reached):
            best = trial
        if trial.gave_way is not None:
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
        raise BenchError("the client keeps up with no rate on this machine", "let other work on it end first")
    return best, (too_much and too_much.gave_way) or "client"


def _twice(attempt: Callable[[float], Trial], rate: float) -> Trial:
    """The better of two trials, where the first does not hold."""
    first = attempt(rate)
    if first.gave_way is None:
        return first
    second = attempt(rate)
    return max(first, second, key=lambda trial: (_MERIT[trial.gave_way], trial.reached))


#: A trial in which the client kept up says more than one in which it did not.
_MERIT: dict[Limit | None, int] = {None: 2, "server": 1, "client": 0}
