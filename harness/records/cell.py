"""The tables of a load: answers parsed where they arrived, then joined with what each request asks for."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from harness.loadgen.live_answers import LiveAnswer
from harness.loadgen.load_plan import RawResponse
from harness.records.columns import CHUNKS, REQUESTS, SERVER
from harness.records.request_record import read_request
from harness.records.stream import OWN_FIELDS, StreamFields
from harness.schema.load import Load, load_text

#: Decimals of a second that are kept: files hold nanoseconds.
NS_DIGITS = 9
#: Rows that are gathered before they become a table, which takes a tenth of their memory.
ROWS_AT_A_TIME = 10_000
#: Reasons to finish of an answer that was cut, whose last call may be half of one.
CUT = ("length", "max_tokens", "model_length")


class Wanted(NamedTuple):
    """Tokens that an answer must have to be a success; None: any number."""

    output_tokens: int | None
    prompt_tokens: int | None


@dataclass
class Answers:
    """The answers to a load, in the order of requests. Times are seconds since its start.

    Attributes:
        t0: the start, in s of this machine's monotonic clock.
        requests: one row a request, with the columns MEASURED.
        chunks: one row a chunk, with the columns RECEIVED.
        texts: the answers that go back into later requests, by request.
    """

    t0: float
    requests: pa.Table
    chunks: pa.Table
    texts: dict[int, LiveAnswer] = field(default_factory=dict)

    @property
    def lasted_s(self) -> float:
        """Seconds to the end of the last answer."""
        return pc.max(self.requests["t_end"]).as_py() or 0.0

    def failed(self, most: float) -> bool:
        """True if more than a share `most` of the requests failed."""
        return bool(len(self.requests) - self.requests["error"].null_count > most * len(self.requests))

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


class Expected(NamedTuple):
    """Request by its columns of the plan, lengths in tokens, as `columns.py` describes them.

    A request whose prompt the server counts otherwise failed, unless only the server can count it (not
    `exact_prompt`).
    """

    input_tokens: int
    output_tokens: int
    reusable_tokens: int | None = None
    exact_prompt: bool = True
    adapter: str | None = None
    category: str | None = None
    formatted: bool = False
    session: int | None = None
    turn: int | None = None
    after: tuple[int, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()

    def wanted(self, exact_length: bool) -> Wanted:
        """Return the tokens that its answer must have: with `exact_length`, exactly as many as asked for."""
        return Wanted(
            self.output_tokens if exact_length else None, self.input_tokens if self.exact_prompt else None
        )


@dataclass(frozen=True)
class CellIdentity:
    """Names of a cell: `cell` is its position in the journal, `label` the engine's name as drawn."""

    cell: int
    engine: str
    variant: str | None
    label: str
    load: Load
    repeat: int


#: Columns that are planned of a request; its stream gives the others.
_JUDGED = ("judged_calls", "bad_calls")
_OF_SESSIONS = ("session_start", "session_model_s", "session_tools_s", "session_queue_s")
PLANNED = {*Expected._fields, *CellIdentity.__annotations__, *_JUDGED, *_OF_SESSIONS}
#: Columns that are measured of a request.
MEASURED = pa.schema([field for field in REQUESTS if field.name not in PLANNED])
#: Columns that are measured of a chunk.
RECEIVED = pa.schema([field for field in CHUNKS if field.name != "cell"])


@dataclass(frozen=True)
class CellRecords:
    """The tables of `records/columns.py`, of one cell or of many; `server` is often empty."""

    requests: pd.DataFrame
    chunks: pd.DataFrame
    server: pd.DataFrame = field(default_factory=lambda: SERVER.empty_table().to_pandas())


def read_responses(
    responses: Iterable[RawResponse],
    t0: float,
    wanted: Mapping[int, Wanted] | Sequence[Wanted],
    tokens_of: Callable[[str], int] | None = None,
    host: str | None = None,
    fields: StreamFields = OWN_FIELDS,
) -> Answers:
    """Parse responses of a load. Times become seconds since `t0`.

    Args:
        wanted: By request.
        tokens_of: Tokens of a text by the model's tokenizer, where that is known.
        host: The node of a cluster that this is.
        fields: Fields of the streams beyond OpenAI's own.
    """
    tables: list[pa.Table] = []
    rows: list[dict[str, Any]] = []
    chunks: dict[str, array[Any]] = {"request": array("i"), "t": array("d"), "tokens": array("i")}

    def since_start(t: float | None) -> float | None:
        return None if t is None else round(t - t0, NS_DIGITS)

    for raw in responses:
        record = read_request(raw, *wanted[raw.index], tokens_of, fields)
        row = {
            **vars(record),
            **record.times,
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
            "connecting_s": None if raw.connecting_s is None else round(raw.connecting_s, NS_DIGITS),
            "resent": raw.resent,
            "retries": raw.retries,
            "t_retry": raw.t_retry,
            "late_s": None if raw.late_s is None else round(raw.late_s, NS_DIGITS),
        }
        rows.append({n: since_start(value) if n.startswith("t_") else value for n, value in row.items()})
        if len(rows) == ROWS_AT_A_TIME:
            tables.append(pa.Table.from_pylist(rows, schema=MEASURED))
            rows.clear()
        chunks["request"].extend([raw.index] * len(record.chunks))
        chunks["t"].extend(round(t - t0, NS_DIGITS) for t, _ in record.chunks)
        chunks["tokens"].extend(count for _, count in record.chunks)
    tables.append(pa.Table.from_pylist(rows, schema=MEASURED))
    received = pa.table({name: np.asarray(column) for name, column in chunks.items()}, schema=RECEIVED)
    return Answers(t0, pa.concat_tables(tables), received)


def cell_records(answers: Answers, expected: Sequence[Expected], identity: CellIdentity) -> CellRecords:
    """Return the two tables of a cell: what was measured, what each request asked for, and the cell.

    Args:
        expected: By request.
    """
    table, sessions = answers.requests, _sessions(answers, expected)
    indices = table["request"].to_pylist()
    columns: dict[str, list[Any]] = {
        name: [getattr(expected[index], name) for index in indices] for name in Expected._fields
    }
    of_cell = {**vars(identity), "load": load_text(identity.load)}
    columns |= {name: [value] * len(indices) for name, value in of_cell.items()}
    nothing = (None,) * len(_OF_SESSIONS)
    for place, name in enumerate(_OF_SESSIONS):
        columns[name] = [sessions.get(index, nothing)[place] for index in indices]
    calls, ends = (table[name].to_pylist() for name in ("tool_calls", "finish_reason"))
    each = zip(indices, calls, ends, strict=True)
    judged = [judge_calls(made, end, expected[index].tools) for index, made, end in each]
    for place, name in enumerate(_JUDGED):
        columns[name] = [counts[place] for counts in judged]
    arrays = [
        table[field.name] if field.name not in PLANNED else pa.array(columns[field.name], field.type)
        for field in REQUESTS
    ]
    cell = pa.repeat(pa.scalar(identity.cell, pa.int32()), len(answers.chunks))
    chunks = answers.chunks.add_column(0, CHUNKS.field("cell"), cell)
    return CellRecords(pa.table(arrays, schema=REQUESTS).to_pandas(), chunks.to_pandas())


def _sessions(answers: Answers, expected: Sequence[Expected]) -> dict[int, tuple[float | None, ...]]:
    """Return the values of the columns _OF_SESSIONS of each session whose turns all succeeded, by the turn
    that ended last.

    From that turn back, the chain goes to the one of those that it needed that ended last: with others, the
    session would have ended at the same time.
    """
    names = ("request", "t_sched", "t_sent", "t_last", "t_end", "queue_wait_ms", "error")
    sessions: dict[int, dict[int, dict[str, Any]]] = {}
    for row in answers.requests.select(names).to_pylist():
        if (session := expected[row["request"]].session) is not None:
            sessions.setdefault(session, {})[row["request"]] = row
    values: dict[int, tuple[float | None, ...]] = {}
    for turns in sessions.values():
        if any(turn["error"] is not None or turn["t_end"] is None for turn in turns.values()):
            continue
        first = turns[min(turns)]
        last = turn = max(turns.values(), key=lambda turn: turn["t_end"])
        model, tools, queue = (last["t_last"] or last["t_end"]) - last["t_sent"], 0.0, last["queue_wait_ms"]
        while needs := [turns[index] for index in expected[turn["request"]].after if index in turns]:
            before = max(needs, key=lambda turn: turn["t_end"])
            tools += max(0.0, turn["t_sched"] - before["t_end"])
            model += before["t_end"] - before["t_sent"]
            queue = None if None in (queue, before["queue_wait_ms"]) else queue + before["queue_wait_ms"]
            turn = before
        tools += turn["t_sched"] - first["t_sched"]
        queue_s = None if queue is None else queue / 1e3
        values[last["request"]] = (first["t_sent"], model, tools, queue_s)
    return values


def judge_calls(
    tool_calls: str | None, finish_reason: str | None, tools: Sequence[Mapping[str, Any]]
) -> tuple[int | None, int | None]:
    """Return how many tool calls an answer has, and how many of them are wrong.

    None of an answer that was cut, or to a request without tools. A call is wrong that names no tool of the
    request, or whose arguments are no JSON object that fits the tool's schema: by jsonschema, or without it
    by the schema's `required` alone, as where the schema refers to what it does not have.
    """
    if not tools or finish_reason in CUT:
        return None, None
    calls = [] if tool_calls is None else msgspec.json.decode(tool_calls)
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    return len(calls), sum(not _fits(schemas.get(name), arguments) for name, arguments in calls)


def _fits(schema: Mapping[str, Any] | None, arguments: str) -> bool:
    try:
        values = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        return False
    if schema is None or not isinstance(values, dict):
        return False
    if (validator := _validator(msgspec.json.encode(schema))) is not None:
        with suppress(Exception):  # its own, or what a strange schema makes it raise
            return bool(validator.is_valid(values))
    return values.keys() >= {*(schema.get("required", ()) if isinstance(schema, dict) else ())}


@lru_cache(maxsize=1024)
def _validator(schema: bytes) -> Any:
    """Return the validator of a schema; None without jsonschema, or where the schema is none."""
    try:
        from jsonschema.validators import validator_for
        from referencing import Registry
    except ImportError:
        return None
    decoded = msgspec.json.decode(schema)
    kind = validator_for(decoded)
    try:
        kind.check_schema(decoded)
    except Exception:  # its own, or what a strange schema makes it raise
        return None
    return kind(decoded, registry=Registry())  # which fetches nothing
