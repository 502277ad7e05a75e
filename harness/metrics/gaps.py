"""The gaps between chunks: of all requests of a table, and of some of them, in memory or on the disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.metrics import on_disk
from harness.metrics.chunk_parts import ChunkParts, Chunks
from harness.metrics.long_frames import arange, map_parts
from harness.metrics.on_disk import OnDisk
from harness.schema.metric import MS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.integer]


def request_keys(table: pd.DataFrame) -> npt.NDArray[np.int64]:
    """One integer for each (cell, request) pair, ascending with the pair."""
    columns = (table[name].to_numpy() for name in ("cell", "request"))
    return map_parts(lambda cell, request: (cell.astype(np.int64) << 32) | request, *columns, dtype=np.int64)


class GapPart(NamedTuple):
    """Some of U requests with all of their gaps.

    Attributes:
        requests: (u,) which they are; None: all, in their order.
        gaps: theirs, `request` below u.
    """

    requests: Ints | None
    gaps: Gaps

    @property
    def request(self) -> Ints:
        """(S,) whose each gap is, below U."""
        return self.gaps.request if self.requests is None else self.requests[self.gaps.request]


class GroupGaps(Protocol):
    """The gaps of U requests."""

    def parts(self) -> Iterator[GapPart]:
        """Each request is in one of them; of gaps that are held there is one part."""

    @property
    def one_token(self) -> bool:
        """Whether each chunk that ends a gap carries one token."""


class TableGaps(Protocol):
    """All gaps of a table of chunks."""

    def of(self, keys: npt.NDArray[np.int64]) -> GroupGaps:
        """Those of the U requests `keys`, in any order."""


@dataclass(frozen=True)
class Gaps:
    """The gaps between consecutive token-carrying chunks of a request, S of them, ascending by request.

    The first chunk of a request ends no gap, so its tokens are in TTFT and not here.

    Attributes:
        request: (S,) whose gap it is.
        gap_ms: (S,) since the chunk before.
        tokens: (S,) tokens of the chunk that ends the gap, of the smallest integers that hold them.
    """

    request: Ints
    gap_ms: Floats
    tokens: Ints

    def of(self, keys: npt.NDArray[np.int64]) -> Gaps:
        """The gaps of the requests `keys` (any order), `request` being the position in `keys`. What can be
        shared with these gaps is no copy."""
        order = np.argsort(keys, kind="stable").astype(np.int32)
        ascending = keys[order]
        if not ascending.size:
            return Gaps(order, self.gap_ms[:0], self.tokens[:0])
        lo, hi = np.searchsorted(self.request, (ascending[0], ascending[-1] + 1))
        gap_ms, tokens = self.gap_ms[lo:hi], self.tokens[lo:hi]
        starts = run_starts(self.request[lo:hi])
        near, counts = self.request[lo:hi][starts], np.diff(starts, append=hi - lo)
        position = np.searchsorted(ascending, near)
        mine = ascending[position] == near
        if not np.all(mine):
            kept = np.repeat(mine, counts)
            gap_ms, tokens = gap_ms[kept], tokens[kept]
        return Gaps(np.repeat(order[position[mine]], counts[mine]), gap_ms, tokens)

    def parts(self) -> Iterator[GapPart]:
        """All of them."""
        yield GapPart(None, self)

    @property
    def one_token(self) -> bool:
        """Whether each chunk that ends a gap carries one token."""
        return bool(np.all(self.tokens == 1))


@dataclass(frozen=True)
class StoredGaps:
    """All gaps of a table that is too long to be held.

    Attributes:
        keys: (K,) the requests that have gaps, ascending.
        starts: (K + 1,) where the gaps of each begin, and the last ones end.
        gap_ms: (S,) as of `Gaps`.
        tokens: (S,)
    """

    keys: Ints
    starts: Ints
    gap_ms: OnDisk
    tokens: OnDisk

    @classmethod
    def of_parts(cls, chunks: ChunkParts) -> StoredGaps:
        """Those of a table."""
        gap_ms, tokens = OnDisk(np.float64), OnDisk(np.int32)
        keys, starts = OnDisk(np.int64), OnDisk(np.int64)
        last: pd.DataFrame | None = None
        before = -1
        for part in chunks.parts():
            found = chunk_gaps(part if last is None else pd.concat([last, part]))
            last = part.iloc[-1:]
            begins = run_starts(found.request)
            if begins.size and found.request[0] == before:  # a request at the end of the part before
                begins = begins[1:]
            keys.append(found.request[begins])
            starts.append(gap_ms.size + begins)
            before = int(found.request[-1]) if found.request.size else before
            gap_ms.append(found.gap_ms)
            tokens.append(found.tokens)
        starts.append(np.array([gap_ms.size]))
        return cls(keys.mapped(), starts.mapped(), gap_ms, tokens)

    def of(self, keys: npt.NDArray[np.int64]) -> SelectedGaps:
        """Those of the requests `keys`, in any order."""
        if np.all(keys[1:] >= keys[:-1]):
            order: Ints = arange(0, keys.size)
        else:
            order = np.argsort(keys, kind="stable")
            keys = keys[order]
        first = map_parts(lambda keys: self.starts[np.searchsorted(self.keys, keys)], keys, dtype=np.int64)
        last = map_parts(
            lambda keys: self.starts[np.searchsorted(self.keys, keys, "right")], keys, dtype=np.int64
        )
        return SelectedGaps(self, order, first, last)


@dataclass(frozen=True)
class SelectedGaps:
    """The gaps of some requests of a long table.

    Attributes:
        requests: (U,) their positions, in the order of the table.
        first: (U,) where the gaps of each begin in the table.
        last: (U,) where they end.
    """

    stored: StoredGaps
    requests: Ints
    first: Ints
    last: Ints

    def parts(self) -> Iterator[GapPart]:
        """As many whole requests at a time as begin within PART gaps."""
        end = int(self.first[-1]) + 1 if self.first.size else 0
        edges = np.searchsorted(self.first, range(on_disk.PART, end, on_disk.PART)).tolist()
        edges = sorted({*edges, *range(0, self.requests.size, on_disk.PART), self.requests.size})
        for begin, end in pairwise(edges):
            first, last = self.first[begin:end], self.last[begin:end]
            rows = slice(int(first[0]), int(last.max()))
            gap_ms, tokens = self.stored.gap_ms[rows], self.stored.tokens[rows]
            counts = last - first
            if counts.sum() < gap_ms.size:
                inside = np.zeros(gap_ms.size + 1, np.int64)
                np.add.at(inside, first - rows.start, 1)
                np.add.at(inside, last - rows.start, -1)
                kept = np.cumsum(inside)[:-1] > 0
                gap_ms, tokens = gap_ms[kept], tokens[kept]
            gaps = Gaps(np.repeat(np.arange(end - begin), counts), gap_ms, tokens)
            yield GapPart(self.requests[begin:end], gaps)

    @cached_property
    def one_token(self) -> bool:
        """Whether each chunk that ends a gap carries one token."""
        return all(part.gaps.one_token for part in self.parts())


@dataclass(frozen=True)
class PooledGaps:
    """The gaps of several groups of requests, the requests of each after those of the one before.

    Attributes:
        each: those of the groups.
        starts: the position of the first request of each.
    """

    each: Sequence[GroupGaps]
    starts: Sequence[int]

    def parts(self) -> Iterator[GapPart]:
        """Those of the first group, then those of the next."""
        for group, start in zip(self.each, self.starts, strict=True):
            for part in group.parts():
                assert part.requests is not None
                yield GapPart(part.requests + start, part.gaps)

    @property
    def one_token(self) -> bool:
        """Whether each chunk that ends a gap carries one token."""
        return all(group.one_token for group in self.each)


def pooled_gaps(each: Sequence[GroupGaps], counts: Sequence[int]) -> GroupGaps:
    """The gaps of several groups, of so many requests each, as those of one."""
    starts = np.cumsum([0, *counts], dtype=np.int32)[:-1]
    held = [gaps for gaps in each if isinstance(gaps, Gaps)]
    if len(held) < len(each):
        return PooledGaps(each, [int(start) for start in starts])
    return Gaps(
        np.concatenate([gaps.request + start for gaps, start in zip(held, starts, strict=True)]),
        np.concatenate([gaps.gap_ms for gaps in held]),
        np.concatenate([gaps.tokens for gaps in held]),
    )


def run_starts(values: Ints | Floats) -> npt.NDArray[np.int64]:
    """Positions at which a value is not that before it."""
    differs = np.ones(values.size, dtype=bool)
    np.not_equal(values[1:], values[:-1], out=differs[1:])
    return np.flatnonzero(differs).astype(np.int64, copy=False)


def table_gaps(chunks: Chunks) -> TableGaps:
    """All gaps of a chunk table."""
    return chunk_gaps(chunks) if isinstance(chunks, pd.DataFrame) else StoredGaps.of_parts(chunks)


def chunk_gaps(chunks: pd.DataFrame) -> Gaps:
    """All gaps of a chunk table that is held, `request` being `request_keys`. It may be in any order."""
    keys, t = request_keys(chunks), chunks["t"].to_numpy(np.float64)
    tokens = chunks["tokens"].to_numpy()
    tokens = tokens.astype(np.min_scalar_type(tokens.max(initial=0)))
    inside = keys[1:] == keys[:-1]
    if np.any(keys[1:] < keys[:-1]) or np.any(inside & (t[1:] < t[:-1])):
        order = np.lexsort((t, keys))
        keys, t, tokens = keys[order], t[order], tokens[order]
        inside = keys[1:] == keys[:-1]
    keys = keys[1:][inside]
    gap_ms = np.diff(t)[inside]
    gap_ms *= MS
    return Gaps(keys, gap_ms, tokens[1:][inside])
