"""Statistics of a trace: rate, burstiness, lengths, shared prefixes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.traces.trace import Trace


@dataclass(frozen=True)
class Lengths:
    """Percentiles in tokens, by linear interpolation."""

    p50: float
    p90: float
    p99: float
    max: int


@dataclass(frozen=True)
class Statistics:
    """Times in seconds. `gap_cv` is the standard deviation of the times between arrivals over their mean.

    `rate` is the number of gaps over the span. `reuse` is the share of blocks that an earlier request had at
    the same place after the same prefix: the hit rate of an unbounded prefix cache. These three are None if
    they are not defined."""

    requests: int
    span_s: float
    rate: float | None
    gap_cv: float | None
    input: Lengths
    output: Lengths
    sessions: int | None
    blocks: int | None
    reuse: float | None


def describe(trace: Trace) -> Statistics:
    """The statistics of a trace with at least one request."""
    span = float(trace.arrival_s[-1])
    gaps = np.diff(trace.arrival_s)
    blocks = None if trace.blocks is None else sum(map(len, trace.blocks))
    return Statistics(
        requests=len(trace),
        span_s=span,
        rate=len(gaps) / span if span else None,
        gap_cv=float(gaps.std() / gaps.mean()) if span else None,
        input=_lengths(trace.input_tokens),
        output=_lengths(trace.output_tokens),
        sessions=None if trace.session is None else len({*trace.session.tolist()} - {""}),
        blocks=blocks,
        reuse=_reused(trace) / blocks if blocks else None,
    )


def _lengths(tokens: NDArray[np.int64]) -> Lengths:
    p50, p90, p99 = np.percentile(tokens, (50, 90, 99)).tolist()
    return Lengths(p50, p90, p99, int(tokens.max()))


def _reused(trace: Trace) -> int:
    """The number of blocks whose whole prefix occurred before. A prefix is its parent's number and its own
    hash."""
    nodes: dict[tuple[int, int], int] = {}
    reused = 0
    for request in trace.blocks or ():
        parent = -1
        for block in request:
            known = nodes.get((parent, block))
            reused += known is not None
            parent = nodes.setdefault((parent, block), len(nodes))
    return reused
