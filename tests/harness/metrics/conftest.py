"""Small tables with the columns of records/columns.py, built request by request in plain Python."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from harness.metrics.contrast import compare_points
from harness.metrics.estimates import measure
from harness.metrics.samples import Cut, by_load, split
from harness.metrics.summary import SummaryInputs, summarize_points
from harness.records.columns import CHUNKS, REQUESTS
from harness.schema.load import TraceLoad, load_text
from harness.schema.results import Comparison, OnlineSummary

Tables = tuple[pd.DataFrame, pd.DataFrame]


def build(rows: Sequence[dict[str, Any]]) -> Tables:
    """Tables of requests given as `{"chunks": [(t, tokens), …], …columns that differ from the defaults}`."""
    requests, chunks = [], []
    for position, given in enumerate(rows):
        stream = given.get("chunks", [])
        row: dict[str, Any] = dict.fromkeys(REQUESTS.names)
        row |= {
            "cell": 0,
            "engine": "roseinfer",
            "label": "roseinfer",
            "load": load_text(TraceLoad(scale=1.0)),
            "repeat": 0,
        }
        row |= {"request": position, "t_sched": 0.0, "t_sent": 0.0, "input_tokens": 10}
        row |= {"completion_tokens": sum(k for _, k in stream), "output_tokens": sum(k for _, k in stream)}
        if stream:
            row |= {"t_first": stream[0][0], "t_last": stream[-1][0], "t_end": stream[-1][0] + 0.001}
        row |= {key: value for key, value in given.items() if key != "chunks"} | {"chunks": len(stream)}
        requests.append(row)
        chunks += [{"cell": row["cell"], "request": row["request"], "t": t, "tokens": k} for t, k in stream]
    return (
        pd.DataFrame(requests, columns=REQUESTS.names),
        pd.DataFrame(chunks, columns=CHUNKS.names).astype({"t": "float64", "tokens": "int32"}),
    )


def summaries(
    rows: Sequence[dict[str, Any]],
    cut: Cut | None = None,
    gpus: Mapping[str, int] | None = None,
    **known: Any,
) -> list[OnlineSummary]:
    """The summaries of requests."""
    inputs, groups = SummaryInputs(**known), split(*build(rows), cut)
    points = [measure(repeats, inputs.slo, inputs.machines, gpus) for repeats in by_load(groups)]
    return summarize_points(points, inputs)


def compare(requests: pd.DataFrame, chunks: pd.DataFrame, cut: Cut | None = None) -> list[Comparison]:
    """The engines of two tables, pair by pair."""
    groups = by_load(split(requests, chunks, cut))
    return compare_points([measure(repeats) for repeats in groups])
