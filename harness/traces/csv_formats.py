"""Trace formats that are CSV files with a header: Azure, BurstGPT, and lengths without times.

Azure LLM inference traces of 2023, 2024 and 2025 have wall-clock times and token counts. The 2023 files end
their lines with CR LF and give seven fractional digits and no time zone; those of 2024 give up to six digits
and an offset. The multimodal file of 2025 has a count of images besides.

BurstGPT (Wang et al., arXiv 2401.17644) has seconds and token counts; newer files have session ids. Rows with
0 response tokens are failed requests; fitting drops and counts them.

Files of lengths (Etalon, Vidur: ShareGPT, BWB, arXiv summarization, LMSYS) have no times. Arrivals are
generated: a Poisson process of one request a second, so a scale is the mean gap in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv

from harness.errors import UsageError
from harness.traces import sampling
from harness.traces.format import Format
from harness.traces.source import Source
from harness.traces.trace import Trace

_COUNT = r"^\s*[0-9]{1,15}\s*$"
_NUMBER = r"^\s*[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?\s*$"


@dataclass(frozen=True)
class Table:
    """The rows of a CSV trace, with every value as text."""

    source: Source
    columns: Any  # a pyarrow.Table

    @classmethod
    def parse(cls, source: Source) -> Table:
        """Split into columns. Raises UsageError if a row and the header differ in their number of values."""
        if repeated := {name for name in source.fields if source.fields.count(name) > 1}:
            raise source.error(source.first_line, f"column {min(repeated)!r} occurs twice")
        if b"\n" not in source.body:
            raise source.error(source.first_line, "there is a header but no request")
        odd: list[Any] = []

        def keep(row: Any) -> str:
            odd.append(row)
            return "skip"

        try:
            columns = csv.read_csv(
                pa.BufferReader(source.body),
                read_options=csv.ReadOptions(use_threads=False, column_names=source.fields, skip_rows=1),
                parse_options=csv.ParseOptions(ignore_empty_lines=False, invalid_row_handler=keep),
                convert_options=csv.ConvertOptions(
                    column_types={name: pa.string() for name in source.fields}, strings_can_be_null=False
                ),
            )
        except pa.ArrowInvalid as error:
            raise UsageError(f"{source.path}: {error}", "give a CSV file in UTF-8") from None
        if odd:
            line = source.first_line + odd[0].number - 1
            raise source.error(
                line, f"{odd[0].actual_columns} values, the header has {odd[0].expected_columns}"
            )
        return cls(source, columns)

    def __len__(self) -> int:
        return int(self.columns.num_rows)

    def texts(self, name: str) -> list[str]:
        """Return a column as text, without the blanks around each value."""
        texts: list[str] = pc.utf8_trim_whitespace(self.columns[name]).to_pylist()
        return texts

    def counts(self, name: str) -> NDArray[np.int64]:
        """Return a column of whole numbers, 0 or more; (rows,)."""
        return np.asarray(self._matching(name, _COUNT, "must be a whole number, 0 or more", pa.int64()))

    def numbers(self, name: str) -> NDArray[np.float64]:
        """Return a column of numbers, 0 or more; (rows,)."""
        rule = "must be a number, 0 or more"
        numbers = np.asarray(self._matching(name, _NUMBER, rule, pa.float64()))
        self._check(name, np.isinf(numbers), f"{rule}, and not too large for 64 bits")
        return numbers

    def stamps(self, name: str) -> NDArray[np.float64]:
        """Return a column of times as seconds since its earliest; (rows,), exact to the nanosecond."""
        column = self.columns[name].to_pandas()
        stamps = pd.to_datetime(column, format="ISO8601", utc=True, errors="coerce")
        in_range = stamps.dt.year.between(1678, 2261).to_numpy()  # 64 bits of nanoseconds
        self._check(name, ~in_range, "must be a time like 2023-11-16 18:15:46.6805900")
        nanoseconds = stamps.to_numpy(dtype="datetime64[ns]").astype(np.int64)
        return np.asarray((nanoseconds - nanoseconds.min()) / 1e9)

    def _matching(self, name: str, pattern: str, rule: str, type: Any) -> Any:
        column = self.columns[name]
        matches = pc.match_substring_regex(column, pattern)
        self._check(name, ~np.asarray(matches, dtype=bool), rule)
        return pc.cast(pc.utf8_trim_whitespace(column), type).to_numpy()

    def _check(self, name: str, wrong: NDArray[np.bool_], rule: str) -> None:
        if wrong.any():
            row = int(wrong.argmax())
            value = self.columns[name][row].as_py()
            raise self.source.error(self.source.first_line + 1 + row, f"{name} is {value!r}: it {rule}")


def read_azure(source: Source) -> Trace:
    """Read a file of the Azure LLM inference traces."""
    table = Table.parse(source)
    return Trace.build(
        source.path.stem,
        table.stamps("TIMESTAMP"),
        table.counts("ContextTokens"),
        table.counts("GeneratedTokens"),
        note="images are left out: text tokens only" if "NumImages" in source.fields else None,
    )


def read_burstgpt(source: Source) -> Trace:
    """Read a file of BurstGPT."""
    table = Table.parse(source)
    return Trace.build(
        source.path.stem,
        table.numbers("Timestamp"),
        table.counts("Request tokens"),
        table.counts("Response tokens"),
        session=table.texts("Session ID") if "Session ID" in source.fields else None,
    )


def read_lengths(source: Source) -> Trace:
    """Read a file of lengths, with generated arrivals."""
    table = Table.parse(source)
    return Trace.build(
        source.path.stem,
        np.cumsum(sampling.gamma_gaps(len(table), rate=1.0, cv=1.0, seed=0)),
        table.counts("num_prefill_tokens"),
        table.counts("num_decode_tokens"),
        note="the file has no times: arrivals are generated, Poisson, 1 request/s",
    )


AZURE = Format("azure", "csv", ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), read_azure)
BURSTGPT = Format(
    "burstgpt",
    "csv",
    ("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type"),
    read_burstgpt,
)
LENGTHS = Format("lengths", "csv", ("num_prefill_tokens", "num_decode_tokens"), read_lengths)
