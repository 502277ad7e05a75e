"""A JSON lines trace as typed rows. An error names the line."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from harness.traces.source import Source

Row = TypeVar("Row", bound=msgspec.Struct)
Count = Annotated[int, msgspec.Meta(ge=0, lt=10**15)]
Moment = Annotated[float, msgspec.Meta(ge=0)]


def parse(source: Source, row: type[Row]) -> list[Row]:
    """Parse every line as a `row`; unknown keys are ignored. Raises UsageError for the first bad line."""
    decoder = msgspec.json.Decoder(row)
    rows: list[Row] = []
    for number, line in enumerate(source.body.split(b"\n"), start=source.first_line):
        try:
            rows.append(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise source.error(number, str(error)) from None
    return rows
