"""BurstGPT (Wang et al., arXiv 2401.17644): CSV, seconds, token counts; newer files have session ids.

Rows with 0 response tokens are failed requests; fitting drops and counts them.
"""

from __future__ import annotations

from harness.traces.csv_table import Table
from harness.traces.format import Format
from harness.traces.source import Source
from harness.traces.trace import Trace

FIELDS = ("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type")


def read(source: Source) -> Trace:
    table = Table.parse(source)
    return Trace.build(
        source.path.stem,
        table.numbers("Timestamp"),
        table.counts("Request tokens"),
        table.counts("Response tokens"),
        session=table.texts("Session ID") if "Session ID" in source.fields else None,
    )


FORMAT = Format("burstgpt", "csv", FIELDS, read)
