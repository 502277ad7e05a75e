"""A request trace: when requests arrived, how long they were, and what prefixes they shared; statistics."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

Blocks = tuple[tuple[int, ...], ...]
#: Fields of a trace about its source.
SOURCE = ("origin", "licence", "citation", "sha256", "note")


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests in order of arrival. Arrays have one entry a request; lengths are in tokens.

    `blocks` holds the hashes of the leading blocks of each input, `block_size` tokens a block and the last
    one may be incomplete; equal hashes mean equal tokens. Input after the blocks is shared with no other
    request. An empty `session` means none. `in_order`: the requests were given in order of arrival."""

    name: str
    arrival_s: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    session: NDArray[np.str_] | None = None
    blocks: Blocks | None = None
    block_size: int | None = None
    origin: str = ""
    licence: str | None = None
    citation: str | None = None
    sha256: str | None = None
    note: str | None = None
    in_order: bool = True

    def __post_init__(self) -> None:
        columns = (self.input_tokens, self.output_tokens, self.session, self.blocks)
        if any(column is not None and len(column) != len(self) for column in columns):
            raise ValueError("the columns of a trace differ in length")
        if len(self) and (self.arrival_s[0] != 0 or np.any(np.diff(self.arrival_s) < 0)):
            raise ValueError("arrivals must start at 0 and ascend")
        if (self.blocks is None) != (self.block_size is None):
            raise ValueError("blocks and block_size come together")

    @classmethod
    def build(
        cls,
        name: str,
        arrival_s: ArrayLike,
        input_tokens: ArrayLike,
        output_tokens: ArrayLike,
        *,
        session: ArrayLike | None = None,
        blocks: Blocks | None = None,
        **fields: Any,
    ) -> Self:
        """Build a trace from columns in any order and on any clock: sorted stably, the first arrival at 0."""
        arrival = np.asarray(arrival_s, dtype=np.float64)
        order = np.argsort(arrival, kind="stable")
        return cls(
            name=name,
            arrival_s=arrival[order] - (arrival[order[0]] if order.size else 0.0),
            input_tokens=np.asarray(input_tokens, dtype=np.int64)[order],
            output_tokens=np.asarray(output_tokens, dtype=np.int64)[order],
            session=None if session is None else np.asarray(session, dtype=np.str_)[order],
            blocks=None if blocks is None else tuple(blocks[i] for i in order),
            in_order=bool(np.all(arrival[:-1] <= arrival[1:])),
            **fields,
        )

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def about(self) -> dict[str, Any]:
        """Name and source, as result files record them."""
        return {key: getattr(self, key) for key in ("name", *SOURCE)}

    def input_quantiles(self, size: int) -> list[int]:
        """Return `size` numbers of input tokens, at evenly spaced quantiles."""
        quantiles = (np.arange(size) + 0.5) / size
        lengths: list[int] = np.quantile(self.input_tokens, quantiles, method="nearest").tolist()
        return lengths

    def head(self, n: int) -> Self:
        """Return the first `n` requests, or all if there are fewer."""
        return self if n >= len(self) else self.take(np.arange(n))

    def take(self, rows: NDArray[np.int64]) -> Self:
        """Return the requests at these ascending positions, (n,); the first one arrives at 0."""
        arrival = self.arrival_s[rows]
        return replace(
            self,
            arrival_s=arrival - (arrival[0] if arrival.size else 0.0),
            input_tokens=self.input_tokens[rows],
            output_tokens=self.output_tokens[rows],
            session=None if self.session is None else self.session[rows],
            blocks=None if self.blocks is None else tuple(self.blocks[i] for i in rows),
        )


@dataclass(frozen=True)
class Statistics:
    """Times in seconds; percentiles and maximum of lengths in tokens, by name.

    `gap_cv` is the standard deviation of the times between arrivals over their mean. `rate` is the number of
    gaps over the span. `reuse` is the share of blocks that an earlier request had at the same place after the
    same prefix: the hit rate of an unbounded prefix cache. These three are None if they are not defined."""

    requests: int
    span_s: float
    rate: float | None
    gap_cv: float | None
    input: dict[str, float]
    output: dict[str, float]
    sessions: int | None
    blocks: int | None
    reuse: float | None


def describe(trace: Trace) -> Statistics:
    """Return the statistics of a trace with at least one request."""
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


def _lengths(tokens: NDArray[np.int64]) -> dict[str, float]:
    p50, p90, p99 = np.percentile(tokens, (50, 90, 99)).tolist()
    return {"p50": p50, "p90": p90, "p99": p99, "max": int(tokens.max())}


def _reused(trace: Trace) -> int:
    """Count the blocks whose whole prefix occurred before: a parent's number and its own hash."""
    nodes: dict[tuple[int, int], int] = {}
    reused = 0
    for request in trace.blocks or ():
        parent = -1
        for block in request:
            reused += (parent, block) in nodes
            parent = nodes.setdefault((parent, block), len(nodes))
    return reused
