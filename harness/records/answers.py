"""What came back of a load, parsed where it arrived: two tables without what was known before."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness.loadgen.live_answers import answer_text
from harness.loadgen.load_plan import LoadResult, RawResponse
from harness.records.columns import CHUNKS, REQUESTS
from harness.records.long_chunks import LongTable
from harness.records.request_record import read_request
from harness.records.stream import NO_TIMES, TimeNames

#: What only the stream of a request says; the rest is known before.
MEASURED = pa.schema(
    [
        REQUESTS.field(name)
        for name in (
            *("request", "t_sched", "t_sent", "t_head", "t_first", "t_answer", "t_last", "t_end"),
            *("completion_tokens", "prompt_tokens", "chunks", "token_source", "status", "error"),
            *("error_detail", "finish_reason", "queue_wait_ms", "prefill_ms", "client", "host"),
            *("connection_reused", "late_s", "cached_tokens", "hidden_tokens"),
        )
    ]
)
#: Requests that are read at a time, where they are not held.
PART = 1 << 14
RECEIVED = pa.schema([field for field in CHUNKS if field.name != "cell"])


class Wanted(NamedTuple):
    """What an answer must have to be a success, in tokens; None: any number."""

    output_tokens: int | None
    prompt_tokens: int | None


@dataclass
class Answers:
    """A load's answers, in the order of requests. Times are seconds since its start.

    `t0` is the start by this machine's monotonic clock. `requests` has the columns MEASURED, `chunks` those
    of RECEIVED. `texts` are those of the answers that go back into later requests, by request.
    """

    t0: float
    requests: pa.Table | LongTable
    chunks: pa.Table | LongTable
    texts: dict[int, str] = field(default_factory=dict)

    @cached_property
    def lasted_s(self) -> float:
        """To the end of the last answer."""
        ends = (pc.max(part["t_end"]).as_py() for part in self.parts())
        return max((end for end in ends if end is not None), default=0.0)

    @property
    def failed(self) -> bool:
        """Whether a request failed."""
        return any(part["error"].null_count < part.num_rows for part in self.parts())

    @property
    def answered(self) -> int:
        """How many requests have an answer that is right."""
        right = (pc.and_(pc.is_null(part["error"]), pc.is_finite(part["t_end"])) for part in self.parts())
        return sum(pc.sum(part).as_py() or 0 for part in right)

    def in_order_sent(self) -> npt.NDArray[np.int32]:
        """The requests that were sent, in that order."""
        sent, index = (
            np.concatenate([part[name].to_numpy() for part in self.parts()]) for name in ("t_sent", "request")
        )
        order = np.lexsort((index, sent))
        return np.asarray(index[order[: np.isfinite(sent).sum()]], dtype=np.int32)

    def parts(self) -> Iterator[pa.Table]:
        """All rows of `requests`, some at a time."""
        if isinstance(self.requests, LongTable):
            yield from self.requests.parts(PART)
        else:
            yield self.requests


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
        return None if t is None else t - t0

    for raw in responses:
        record = read_request(raw, *wanted[raw.index], tokens_of, times)
        row = {
            "request": raw.index,
            "t_sched": raw.t_sched - t0,
            "t_sent": since_start(raw.t_sent),
            "t_head": since_start(record.t_head),
            "t_first": record.chunks[0][0] - t0 if record.chunks else None,
            "t_answer": since_start(record.t_answer) if record.chunks else None,
            "t_last": record.chunks[-1][0] - t0 if record.chunks else None,
            "t_end": since_start(raw.t_end),
            "completion_tokens": record.completion_tokens,
            "prompt_tokens": record.prompt_tokens,
            "chunks": len(record.chunks),
            "token_source": record.token_source,
            "status": record.status,
            "error": record.error,
            "error_detail": record.detail,
            "finish_reason": record.finish_reason,
            "queue_wait_ms": record.queue_wait_ms,
            "prefill_ms": record.prefill_ms,
            "client": raw.client,
            "host": host,
            "connection_reused": raw.reused,
            "late_s": raw.late_s,
            "cached_tokens": record.cached_tokens,
            "hidden_tokens": record.hidden_tokens,
        }
        for name, column in rows.items():
            column.append(row[name])
        of += [raw.index] * len(record.chunks)
        when += [t - t0 for t, _ in record.chunks]
        tokens += [count for _, count in record.chunks]
    chunks = pa.table({"request": of, "t": when, "tokens": tokens}, schema=RECEIVED)
    return pa.table(rows, schema=MEASURED), chunks
