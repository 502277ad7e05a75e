"""Lengths of answers side by side."""

from __future__ import annotations

import pandas as pd

from harness.metrics.samples import split
from harness.records.columns import CHUNKS, REQUESTS
from harness.report.tables.cells import lengths_table
from harness.schema.load import ClosedLoop, load_text


def rows(label: str, cell: int, answers: list[int], ends: list[str]) -> list[dict[str, object]]:
    empty: dict[str, object] = dict.fromkeys(REQUESTS.names)
    return [
        empty
        | {"cell": cell, "engine": label, "label": label, "repeat": 0, "request": i, "input_tokens": 10 + i}
        | {"load": load_text(ClosedLoop(concurrency=4)), "output_tokens": 64, "completion_tokens": tokens}
        | {"t_sent": 0.0, "t_first": 1.0, "t_last": 2.0, "t_end": 2.0, "chunks": 1, "finish_reason": end}
        for i, (tokens, end) in enumerate(zip(answers, ends, strict=True))
    ]


def table_of(*engines: list[dict[str, object]]):
    requests = pd.DataFrame([row for engine in engines for row in engine], columns=REQUESTS.names)
    chunks = pd.DataFrame(columns=CHUNKS.names).astype({"t": "float64", "tokens": "int32"})
    chunks = chunks.astype({"cell": "int64", "request": "int64"})
    return lengths_table(split(requests, chunks))


def test_each_engine_has_its_lengths_and_how_many_ended_by_themselves():
    found = table_of(
        rows("a", 0, [10, 20, 30, 40], ["stop", "stop", "stop", "length"]),
        rows("b", 1, [64, 64, 64, 64], ["length"] * 4),
    )
    assert [line[0] for line in found.lines] == ["a", "b"]
    heads = list(found.headers)
    a, b = (dict(zip(heads, line, strict=True)) for line in found.lines)
    assert (a["answer mean"], a["answer p50"], a["ended by itself"]) == ("25.0", "25", "75 %")
    assert (b["answer mean"], b["answer p90"], b["ended by itself"]) == ("64.0", "64", "0 %")
    assert a["prompt p50"] == "12"


def test_answers_of_one_length_need_no_table():
    assert table_of(rows("a", 0, [5, 5], ["length"] * 2), rows("b", 1, [5, 5], ["length"] * 2)) is None
