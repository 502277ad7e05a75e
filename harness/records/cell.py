"""A whole load to the two tables of one cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa

from harness.loadgen.load_plan import LoadResult
from harness.records.columns import CHUNKS, REQUESTS
from harness.records.request_record import read_request
from harness.schema.load import Load, load_text


class Expected(NamedTuple):
    """Lengths that a request asks for, in tokens; how many of its prompt's were sent at its head before; the
    number of its session in the load, and its turn in it.

    `adapter` and `formatted` are what else it asks for. A request whose prompt the server counts otherwise
    failed, unless only the server can count it.
    """

    input_tokens: int
    output_tokens: int
    reusable_tokens: int | None = None
    exact_prompt: bool = True
    adapter: str | None = None
    formatted: bool = False
    session: int | None = None
    turn: int = 0


@dataclass(frozen=True)
class CellIdentity:
    """Which cell this is: `cell` is its position in the journal, `label` the engine's name as drawn."""

    cell: int
    engine: str
    variant: str | None
    label: str
    load: Load
    repeat: int


@dataclass(frozen=True)
class CellRecords:
    """The tables of `records/columns.py`, of one cell or of many."""

    requests: pd.DataFrame
    chunks: pd.DataFrame


def read_cell(
    result: LoadResult,
    expected: Sequence[Expected],
    identity: CellIdentity,
    *,
    exact_length: bool,
    tokens_of: Callable[[str], int] | None = None,
) -> CellRecords:
    """Parse every response of a load. Times become seconds since `result.t0`.

    Args:
        tokens_of: Tokens of a text by the model's tokenizer, where that is known.
        expected: What each request asks for, by request index.
        exact_length: A request that gives another number of tokens failed; true where EOS is ignored.
    """
    requests: dict[str, list[Any]] = {name: [] for name in REQUESTS.names}
    chunk_request: list[int] = []
    chunk_t: list[float] = []
    chunk_tokens: list[int] = []
    t0 = result.t0

    def since_start(t: float | None) -> float | None:
        return None if t is None else t - t0

    for raw in result.responses:
        asked = expected[raw.index]
        record = read_request(
            raw,
            asked.output_tokens if exact_length else None,
            asked.input_tokens if asked.exact_prompt else None,
            tokens_of,
        )
        row = {
            **vars(identity),
            "load": load_text(identity.load),
            "request": raw.index,
            "input_tokens": asked.input_tokens,
            "output_tokens": asked.output_tokens,
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
            "connection_reused": raw.reused,
            "late_s": raw.late_s,
            "adapter": asked.adapter,
            "formatted": asked.formatted,
            "reusable_tokens": asked.reusable_tokens,
            "cached_tokens": record.cached_tokens,
            "session": asked.session,
            "turn": None if asked.session is None else asked.turn,
            "session_start": None,
        }
        for name, column in requests.items():
            column.append(row[name])
        for t, tokens in record.chunks:
            chunk_request.append(raw.index)
            chunk_t.append(t - t0)
            chunk_tokens.append(tokens)
    requests["session_start"] = _session_starts(requests)
    chunks = {
        "cell": [identity.cell] * len(chunk_t),
        "request": chunk_request,
        "t": chunk_t,
        "tokens": chunk_tokens,
    }
    return CellRecords(
        pa.table(requests, schema=REQUESTS).to_pandas(), pa.table(chunks, schema=CHUNKS).to_pandas()
    )


def _session_starts(requests: dict[str, list[Any]]) -> list[float | None]:
    """For the last turn of each session whose turns all succeeded, when its first was sent; else None."""
    rows: dict[int, list[int]] = {}
    for row, session in enumerate(requests["session"]):
        if session is not None:
            rows.setdefault(session, []).append(row)
    starts: list[float | None] = [None] * len(requests["request"])
    for turns in rows.values():
        turns.sort(key=lambda row: requests["turn"][row])
        if all(requests["error"][row] is None for row in turns):
            starts[turns[-1]] = requests["t_sent"][turns[0]]
    return starts
