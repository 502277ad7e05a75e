"""The load that the benchmark put on an engine: what the profiled sample has to reach."""

from __future__ import annotations

from math import ceil

import numpy as np
import pandas as pd

from harness.schema.load import Load, parse_load
from harness.schema.metric import MS
from harness.schema.profile import Level


def measure_levels(requests: pd.DataFrame, chunks: pd.DataFrame) -> dict[tuple[str, Load], Level]:
    """By label and load; without those at which no request succeeded."""
    return {
        (str(label), parse_load(str(load))): level
        for (label, load), rows in requests.groupby(["label", "load"], observed=True)
        if (level := measure_level(rows, chunks)) is not None
    }


def measure_level(requests: pd.DataFrame, chunks: pd.DataFrame) -> Level | None:
    """Requests in flight and running when tokens came, a mean over all tokens.

    Args:
        requests: of one engine at one load, any repeats (columns of records/columns.py).
        chunks: of any cells.

    Returns:
        None where no request succeeded. A request runs from its first token to its last. `step_ms` is the
        mean time between a request's tokens, over all of them.
    """
    good = requests[requests["error"].isna()]
    in_flight, running, tokens, seconds, gaps = 0, 0, 0, 0.0, 0
    for cell, rows in good.groupby("cell"):
        sent, first, last = (np.sort(rows[name].to_numpy()) for name in ("t_sent", "t_first", "t_last"))
        came = chunks[(chunks["cell"] == cell) & chunks["request"].isin(rows["request"])]
        t, weights = came["t"].to_numpy(), came["tokens"].to_numpy(np.int64)
        ended = np.searchsorted(last, t, side="left")
        in_flight += int(weights @ (np.searchsorted(sent, t, side="right") - ended))
        running += int(weights @ (np.searchsorted(first, t, side="right") - ended))
        tokens += int(weights.sum())
        seconds += float((rows["t_last"] - rows["t_first"]).sum())
        gaps += int((rows["completion_tokens"] - 1).sum())
    if not tokens:
        return None
    return Level(
        in_flight=max(1, ceil(in_flight / tokens)),
        running=running / tokens,
        step_ms=seconds / gaps * MS if gaps else None,
    )
