"""The answers to a load, parsed where they arrived: two tables without what was planned."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness.loadgen.live_answers import answer_text
from harness.loadgen.load_plan import LoadResult, RawResponse
from harness.records.columns import CHUNKS, PLANNED, REQUESTS
from harness.records.request_record import read_request
from harness.records.stream import NO_TIMES, TimeNames

#: What is measured of a request.
MEASURED = pa.schema([field for field in REQUESTS if field.name not in PLANNED])
#: Decimals of a second that are kept: files hold nanoseconds.
NS_DIGITS = 9
#: What is measured of a chunk.
RECEIVED = pa.schema([field for field in CHUNKS if field.name != "cell"])


class Wanted(NamedTuple):
    """What an answer must have to be a success, in tokens; None: any number."""

    output_tokens: int | None
    prompt_tokens: int | None


@dataclass
class Answers:
    """The answers to a load, in the order of requests. Times are seconds since its start.

    Attributes:
        t0: the start, in s of this machine's monotonic clock.
        requests: one row a request, with the columns MEASURED.
        chunks: one row a chunk, with the columns RECEIVED.
        texts: texts of the answers that go back into later requests, by request.
    """

    t0: float
    requests: pa.Table
    chunks: pa.Table
    texts: dict[int, str] = field(default_factory=dict)

    @property
    def lasted_s(self) -> float:
        """Seconds to the end of the last answer."""
        return pc.max(self.requests["t_end"]).as_py() or 0.0

    @property
    def failed(self) -> bool:
        """Whether a request failed."""
        return bool(self.requests["error"].null_count < len(self.requests))

    @property
    def answered(self) -> int:
        """Number of requests that have a whole answer without an error."""
        whole = pc.and_(pc.is_null(self.requests["error"]), pc.is_finite(self.requests["t_end"]))
        return pc.sum(whole).as_py() or 0

    def in_order_sent(self) -> npt.NDArray[np.int32]:
        """Return the requests that were sent, in that order."""
        sent, index = (self.requests[name].to_numpy() for name in ("t_sent", "request"))
        order = np.lexsort((index, sent))
        return np.asarray(index[order[: np.isfinite(sent).sum()]], dtype=np.int32)


def parse(
    result: LoadResult,
    wanted: Mapping[int, Wanted] | Sequence[Wanted],
    tokens_of: Callable[[str], int] | None = None,
    texts_of: Collection[int] = (),
    host: str | None = None,
    times: TimeNames = NO_TIMES,
) -> Answers:
    """Parse every response of a load.

    Args:
        wanted: By request.
        tokens_of: Tokens of a text by the model's tokenizer, where that is known.
        texts_of: Requests whose answers' texts are kept.
        host: Which node of a cluster this is.
        times: Fields of a stream that may have each time that an engine measures.
    """
    requests, chunks = parse_part(result.responses, result.t0, wanted, tokens_of, host, times)
    needed = {*texts_of}
    texts = {raw.index: answer_text(raw) for raw in result.responses if raw.index in needed}
    return Answers(result.t0, requests, chunks, texts)


def parse_part(
    responses: Sequence[RawResponse],
    t0: float,
    wanted: Mapping[int, Wanted] | Sequence[Wanted],
    tokens_of: Callable[[str], int] | None = None,
    host: str | None = None,
    times: TimeNames = NO_TIMES,
) -> tuple[pa.Table, pa.Table]:
    """The two tables of some responses. Times become seconds since `t0`."""
    rows: dict[str, list[Any]] = {name: [] for name in MEASURED.names}
    of: list[int] = []
    when: list[float] = []
    tokens: list[int] = []

    def since_start(t: float | None) -> float | None:
        return None if t is None else round(t - t0, NS_DIGITS)

    for raw in responses:
        record = read_request(raw, *wanted[raw.index], tokens_of, times)
        came = [round(t - t0, NS_DIGITS) for t, _ in record.chunks]
        row = vars(record) | {
            "request": raw.index,
            "t_sched": raw.t_sched,
            "t_sent": raw.t_sent,
            "t_first": record.chunks[0][0] if record.chunks else None,
            "t_last": record.chunks[-1][0] if record.chunks else None,
            "t_end": raw.t_end,
            "chunks": len(record.chunks),
            "client": raw.client,
            "host": host,
            "connection_reused": raw.reused,
            "late_s": None if raw.late_s is None else round(raw.late_s, NS_DIGITS),
        }
        for name, column in rows.items():
            column.append(since_start(row[name]) if name.startswith("t_") else row[name])
        of += [raw.index] * len(record.chunks)
        when += came
        tokens += [count for _, count in record.chunks]
    chunks = pa.table({"request": of, "t": when, "tokens": tokens}, schema=RECEIVED)
    return pa.table(rows, schema=MEASURED), chunks
