"""The load that the benchmark put on an engine: what the profiled sample has to reach."""

from __future__ import annotations

from math import ceil

import numpy as np
import pandas as pd

from harness.metrics.samples import load_of
from harness.schema.load import Load
from harness.schema.metric import MS
from harness.schema.profile import Level


def measure_levels(requests: pd.DataFrame, chunks: pd.DataFrame) -> dict[tuple[str, Load], Level]:
    """By label and load; without those at which no request succeeded."""
    return {
        (str(rows["label"].iloc[0]), load_of(rows)): level
        for _, rows in requests.groupby(["label", "load"], observed=True)
        if (level := measure_level(rows, chunks)) is not None
    }


def measure_level(requests: pd.DataFrame, chunks: pd.DataFrame) -> Level | None:
    """Requests in flight and running when tokens came, a mean over all tokens but each request's first.

    Args:
        requests: of one engine at one load, any repeats (columns of records/columns.py).
        chunks: of any cells.

    Returns:
        None where no request succeeded. A request runs from its first token to its last. `step_ms` is the
        mean inter-token latency: all tokens' gaps over their number.
    """
    good = requests[requests["error"].isna()]
    in_flight: list[np.ndarray] = []
    running: list[np.ndarray] = []
    weights: list[np.ndarray] = []
    seconds, gaps = 0.0, 0
    for cell, rows in good.groupby("cell"):
        came = chunks[(chunks["cell"] == cell) & chunks["request"].isin(rows["request"])]
        t = came["t"].to_numpy()
        weights.append(came["tokens"].to_numpy())
        last = np.sort(rows["t_last"].to_numpy())
        ended = np.searchsorted(last, t, side="left")
        in_flight.append(np.searchsorted(np.sort(rows["t_sent"].to_numpy()), t, side="right") - ended)
        running.append(np.searchsorted(np.sort(rows["t_first"].to_numpy()), t, side="right") - ended)
        seconds += float((rows["t_last"] - rows["t_first"]).sum())
        gaps += int((rows["completion_tokens"] - 1).sum())
    if not weights:
        return None
    weight = np.concatenate(weights)
    return Level(
        in_flight=max(1, ceil(np.average(np.concatenate(in_flight), weights=weight))),
        running=float(np.average(np.concatenate(running), weights=weight)),
        step_ms=seconds / gaps * MS if gaps else None,
    )
