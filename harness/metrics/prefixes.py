"""The share of prompts that a prefix cache could have held, and the share that the engine says it did."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from harness.metrics.definitions import prompt_tokens, succeeded
from harness.metrics.samples import cells_of, load_of
from harness.schema.results import PrefixCount, PrefixHits

UNKNOWN = "unknown: the engine does not report it"
USAGE = "usage of the answers: prompt_tokens_details.cached_tokens"


def prefix_hits(requests: pd.DataFrame, counted: Mapping[int, PrefixCount]) -> list[PrefixHits]:
    """One entry a cell, in the order in which cells first appear, over all requests that were sent.

    Args:
        requests: One row a request (records/columns.py).
        counted: By cell, what the engine's counters said. Where the answers' usage says it, that is taken
            instead; a request without it had nothing cached, as vLLM and SGLang leave a 0 out.
    """
    return [_hits(cell, counted) for cell in cells_of(requests, ["cell"])]


def _hits(cell: pd.DataFrame, counted: Mapping[int, PrefixCount]) -> PrefixHits:
    first, load = cell.iloc[0], load_of(cell)
    sent = cell["reusable_tokens"].notna()
    good = cell[succeeded(cell)]
    sent_tokens = int(cell["input_tokens"][sent].sum())
    reported, source = None, UNKNOWN
    if good["cached_tokens"].notna().any():
        reported, source = _share(good["cached_tokens"].sum(), np.nansum(prompt_tokens(good))), USAGE
    elif count := counted.get(int(first["cell"])):
        reported, source = _share(count.hits, count.queries), count.source
    return PrefixHits(
        engine=first["engine"],
        variant=None if pd.isna(first["variant"]) else first["variant"],
        label=first["label"],
        load=load,
        repeat=first["repeat"],
        prompt_tokens=sent_tokens,
        possible=_share(cell["reusable_tokens"].sum(), sent_tokens),
        reported=reported,
        source=source,
    )


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0
