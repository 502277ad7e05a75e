"""toylog: a CSV file with a header `when,prompt,answer`, in seconds and tokens."""

from __future__ import annotations

import csv
import io

from harness.traces.format import Format
from harness.traces.source import Source
from harness.traces.trace import Trace

FIELDS = ("when", "prompt", "answer")


def read(source: Source) -> Trace:
    rows = list(csv.DictReader(io.StringIO(source.body.decode())))
    when, prompt, answer = ([float(row[field]) for row in rows] for field in FIELDS)
    return Trace.build(source.path.stem, when, prompt, answer)


FORMAT = Format("toylog", "csv", FIELDS, read)
