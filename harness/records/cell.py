"""A whole load to the two tables of one cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa

from harness.loadgen.load_plan import LoadResult
from harness.metrics.chunk_parts import Chunks
from harness.records.answers import RECEIVED, Answers, Wanted, parse
from harness.records.columns import CHUNKS, REQUESTS
from harness.records.long_chunks import CellChunks, LongTable
from harness.records.long_requests import requests_frame
from harness.schema.load import Load, load_text


class Expected(NamedTuple):
    """What a request asks for; lengths are in tokens. `reusable_tokens` is how many leading tokens of its
    prompt were sent before. `session` is the number of its session in the load, `turn` its turn in it.

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

    def wanted(self, exact_length: bool) -> Wanted:
        """What its answer must have. With `exact_length`, exactly the tokens that are asked for."""
        return Wanted(
            self.output_tokens if exact_length else None, self.input_tokens if self.exact_prompt else None
        )


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
    chunks: Chunks


def read_cell(
    result: LoadResult,
    expected: Sequence[Expected],
    identity: CellIdentity,
    *,
    exact_length: bool,
) -> CellRecords:
    """Parse every response of a load. Times become seconds since `result.t0`.

    Args:
        expected: What each request asks for, by request index.
        exact_length: A request that gives another number of tokens failed; true where EOS is ignored.
    """
    wanted = {raw.index: expected[raw.index].wanted(exact_length) for raw in result.responses}
    return cell_records(parse(result, wanted), expected, identity)


def cell_records(answers: Answers, expected: Sequence[Expected], identity: CellIdentity) -> CellRecords:
    """The two tables of a cell: what was measured, with what each request asked for and whose it is.

    The chunks, which can be many, are taken out of `answers`.
    """
    starts = _session_starts(answers, expected)
    tables = (_with_known(part, expected, identity, starts) for part in answers.parts())
    if isinstance(answers.requests, LongTable):
        requests = requests_frame(tables, len(answers.requests))
    else:
        [table] = tables
        requests = table.to_pandas()
    chunks, answers.chunks = answers.chunks, RECEIVED.empty_table()
    if isinstance(chunks, LongTable):
        return CellRecords(requests, CellChunks(identity.cell, chunks))
    cell = pa.repeat(pa.scalar(identity.cell, pa.int32()), len(chunks))
    chunks = chunks.add_column(0, CHUNKS.field("cell"), cell)
    return CellRecords(requests, frame_of(chunks))


def _with_known(
    table: pa.Table, expected: Sequence[Expected], identity: CellIdentity, starts: Mapping[int, float | None]
) -> pa.Table:
    """Rows of `requests.parquet`: those measured, with what was known before."""
    indices = table["request"].to_pylist()
    asked = [expected[index] for index in indices]
    known: dict[str, list[Any]] = {
        name: [value] * len(asked)
        for name, value in {**vars(identity), "load": load_text(identity.load)}.items()
    }
    known |= {
        "input_tokens": [request.input_tokens for request in asked],
        "output_tokens": [request.output_tokens for request in asked],
        "adapter": [request.adapter for request in asked],
        "formatted": [request.formatted for request in asked],
        "reusable_tokens": [request.reusable_tokens for request in asked],
        "session": [request.session for request in asked],
        "turn": [None if request.session is None else request.turn for request in asked],
        "session_start": [starts.get(index) for index in indices],
    }
    columns = [
        table[field.name] if field.name in table.column_names else pa.array(known[field.name], field.type)
        for field in REQUESTS
    ]
    return pa.table(columns, schema=REQUESTS)


def frame_of(table: pa.Table) -> pd.DataFrame:
    """A table of numbers, which can be long, without a second copy of all of it on the way."""
    frame: pd.DataFrame = table.to_pandas(split_blocks=True, self_destruct=True)
    return frame


def _session_starts(answers: Answers, expected: Sequence[Expected]) -> dict[int, float | None]:
    """By the last turn of each session whose turns all succeeded, when its first was sent."""
    sessions: dict[int, list[tuple[int, int, float | None, bool]]] = {}
    for part in answers.parts():
        rows = (part[name].to_pylist() for name in ("request", "t_sent", "error"))
        for index, sent, error in zip(*rows, strict=True):
            asked = expected[index]
            if asked.session is not None:
                sessions.setdefault(asked.session, []).append((asked.turn, index, sent, error is None))
    ordered = (sorted(turns) for turns in sessions.values() if all(good for *_, good in turns))
    return {turns[-1][1]: turns[0][2] for turns in ordered}
