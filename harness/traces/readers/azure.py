"""Azure LLM inference traces of 2023, 2024 and 2025: CSV, wall-clock times, token counts.

The 2023 files end their lines with CR LF and give seven fractional digits and no time zone; those of 2024
give up to six digits and an offset. The multimodal file of 2025 has a count of images besides.
"""

from __future__ import annotations

from harness.traces.csv_table import Table
from harness.traces.format import Format
from harness.traces.source import Source
from harness.traces.trace import Trace

FIELDS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read(source: Source) -> Trace:
    table = Table.parse(source)
    return Trace.build(
        source.path.stem,
        table.stamps("TIMESTAMP"),
        table.counts("ContextTokens"),
        table.counts("GeneratedTokens"),
        note="images are left out: text tokens only" if "NumImages" in source.fields else None,
    )


FORMAT = Format("azure", "csv", FIELDS, read)
