"""The two tables of one cell: the answers to its load, with what each request asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa

from harness.loadgen.load_plan import LoadResult
from harness.records.answers import Answers, Wanted, parse
from harness.records.columns import CHUNKS, REQUESTS
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
    chunks: pd.DataFrame


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
    """Return the two tables of a cell: what was measured, what each request asked for, and the cell."""
    requests = _with_plan(answers.requests, expected, identity, _session_starts(answers, expected))
    cell = pa.repeat(pa.scalar(identity.cell, pa.int32()), len(answers.chunks))
    chunks = answers.chunks.add_column(0, CHUNKS.field("cell"), cell)
    return CellRecords(requests.to_pandas(), chunks.to_pandas())


def _with_plan(
    table: pa.Table, expected: Sequence[Expected], identity: CellIdentity, starts: Mapping[int, float | None]
) -> pa.Table:
    """Return rows of `requests.parquet`: those measured, with what was planned."""
    indices = table["request"].to_pylist()
    planned = [expected[index] for index in indices]
    columns: dict[str, list[Any]] = {
        name: [value] * len(planned)
        for name, value in {**vars(identity), "load": load_text(identity.load)}.items()
    }
    columns |= {
        "input_tokens": [request.input_tokens for request in planned],
        "output_tokens": [request.output_tokens for request in planned],
        "adapter": [request.adapter for request in planned],
        "formatted": [request.formatted for request in planned],
        "reusable_tokens": [request.reusable_tokens for request in planned],
        "session": [request.session for request in planned],
        "turn": [None if request.session is None else request.turn for request in planned],
        "session_start": [starts.get(index) for index in indices],
    }
    arrays = [
        table[field.name] if field.name in table.column_names else pa.array(columns[field.name], field.type)
        for field in REQUESTS
    ]
    return pa.table(arrays, schema=REQUESTS)


def _session_starts(answers: Answers, expected: Sequence[Expected]) -> dict[int, float | None]:
    """Return when the first turn was sent, by the last turn of each session whose turns all succeeded."""
    sessions: dict[int, list[tuple[int, int, float | None, bool]]] = {}
    rows = (answers.requests[name].to_pylist() for name in ("request", "t_sent", "error"))
    for index, sent, error in zip(*rows, strict=True):
        planned = expected[index]
        if planned.session is not None:
            sessions.setdefault(planned.session, []).append((planned.turn, index, sent, error is None))
    whole = (sorted(turns) for turns in sessions.values() if all(succeeded for *_, succeeded in turns))
    return {turns[-1][1]: turns[0][2] for turns in whole}
