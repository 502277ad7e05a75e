"""Lengths without times (Etalon, Vidur: ShareGPT, BWB, arXiv summarization, LMSYS): CSV of token counts.

Arrivals are generated: a Poisson process of one request a second, so a scale is the mean gap in seconds.
"""

from __future__ import annotations

import numpy as np

from harness.traces import sampling
from harness.traces.csv_table import Table
from harness.traces.format import Format
from harness.traces.source import Source
from harness.traces.trace import Trace

FIELDS = ("num_prefill_tokens", "num_decode_tokens")
SEED = 0


def read(source: Source) -> Trace:
    table = Table.parse(source)
    return Trace.build(
        source.path.stem,
        np.cumsum(sampling.gamma_gaps(len(table), rate=1.0, cv=1.0, seed=SEED)),
        table.counts("num_prefill_tokens"),
        table.counts("num_decode_tokens"),
        note="the file has no times: arrivals are generated, Poisson, 1 request/s",
    )


FORMAT = Format("lengths", "csv", FIELDS, read)
