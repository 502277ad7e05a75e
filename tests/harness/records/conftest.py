"""Cells as they are written."""

from __future__ import annotations

from harness.loadgen.load_plan import LoadResult, RawResponse
from harness.records.cell import CellIdentity, CellRecords, Expected
from harness.schema.load import TraceLoad
from tests.harness.measured import read_cell

EVENT = b'data: {"choices":[{"text":"a","token_ids":[1,2],"finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


def make_cell(number: int, requests: int = 3) -> CellRecords:
    """Make a cell in which the last request was refused."""
    responses = [RawResponse(i, 100.0, 100.5, 102.0, [(101.0, HEAD + EVENT)]) for i in range(requests)]
    responses[-1] = RawResponse(requests - 1, 100.0, None, 100.1, [], "connect", "refused")
    identity = CellIdentity(number, "roseinfer", None, "roseinfer", TraceLoad(scale=0.5), 1)
    return read_cell(LoadResult(100.0, responses), [Expected(4, 2)] * requests, identity)
