"""Trace formats that are CSV files with a header: the project's own, Azure, BurstGPT, and lengths alone.

Azure LLM inference traces of 2023, 2024 and 2025 have wall-clock times and token counts. The 2023 files end
their lines with CR LF and give seven fractional digits and no time zone; those of 2024 give up to six digits
and an offset. The multimodal file of 2025 has a count of images besides.

BurstGPT (Wang et al., arXiv 2401.17644) has seconds and token counts; newer files have session ids. Rows with
0 response tokens are failed requests; fitting drops and counts them.

The project's own has the columns `arrival_s,input_tokens,output_tokens[,session,prefix_blocks]`, where
`prefix_blocks` are hashes of the leading blocks of the input, whole numbers between blanks. Lines
`# key: value` before the header may give `block_size` (tokens, else 16), `origin`, `licence`, `citation` and
`note`, so that a converted trace still says where it comes from.

Files of lengths (Etalon, Vidur: ShareGPT, BWB, arXiv summarization, LMSYS) have no times. Arrivals are
generated: a Poisson process of one request a second, so a scale is the mean gap in seconds.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv as arrow_csv

from harness.errors import UsageError
from harness.traces import sampling
from harness.traces.format import Format
from harness.traces.source import Source
from harness.traces.trace import Blocks, Trace

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
            columns = arrow_csv.read_csv(
                pa.BufferReader(source.body),
                read_options=arrow_csv.ReadOptions(
                    use_threads=False, column_names=source.fields, skip_rows=1
                ),
                parse_options=arrow_csv.ParseOptions(ignore_empty_lines=False, invalid_row_handler=keep),
                convert_options=arrow_csv.ConvertOptions(
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

    def trace(self, arrival_s: NDArray[np.float64], inputs: str, outputs: str, **fields: Any) -> Trace:
        """Return the requests that arrive at these times, (rows,) s, with lengths in the columns named."""
        lengths = self.counts(inputs), self.counts(outputs)
        return Trace.build(self.source.path.stem, arrival_s, *lengths, **fields)

    def optional(self, name: str) -> list[str] | None:
        """Return a column as text; None where the file has none of that name."""
        return self.texts(name) if name in self.source.fields else None

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
    note = "images are left out: text tokens only" if "NumImages" in source.fields else None
    return table.trace(table.stamps("TIMESTAMP"), "ContextTokens", "GeneratedTokens", note=note)


def read_burstgpt(source: Source) -> Trace:
    """Read a file of BurstGPT."""
    table = Table.parse(source)
    arrival_s, session = table.numbers("Timestamp"), table.optional("Session ID")
    return table.trace(arrival_s, "Request tokens", "Response tokens", session=session)


def read_lengths(source: Source) -> Trace:
    """Read a file of lengths, with generated arrivals."""
    table = Table.parse(source)
    arrival_s = np.cumsum(sampling.gamma_gaps(table.columns.num_rows, rate=1.0, cv=1.0, seed=0))
    note = "the file has no times: arrivals are generated, Poisson, 1 request/s"
    return table.trace(arrival_s, "num_prefill_tokens", "num_decode_tokens", note=note)


AZURE = Format("azure", "csv", ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), read_azure)
BURSTGPT = Format(
    "burstgpt",
    "csv",
    ("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type"),
    read_burstgpt,
)
LENGTHS = Format("lengths", "csv", ("num_prefill_tokens", "num_decode_tokens"), read_lengths)


FIELDS = ("arrival_s", "input_tokens", "output_tokens")
DEFAULT_BLOCK_SIZE = 16
_ABOUT = ("origin", "licence", "citation", "note")


def read(source: Source) -> Trace:
    """Read the project's CSV."""
    table = Table.parse(source)
    blocks = _blocks(table) if "prefix_blocks" in source.fields else None
    return table.trace(
        table.numbers("arrival_s"),
        "input_tokens",
        "output_tokens",
        session=table.optional("session"),
        blocks=blocks,
        block_size=None if blocks is None else _block_size(source),
        **{key: source.comments[key] for key in _ABOUT if key in source.comments},
    )


def dump(trace: Trace) -> bytes:
    """Return a trace as the project's CSV; reading it gives the same requests."""
    text = io.StringIO()
    about = {key: getattr(trace, key) for key in _ABOUT} | {"block_size": trace.block_size}
    text.writelines(f"# {key}: {' '.join(str(value).split())}\n" for key, value in about.items() if value)
    columns: dict[str, list[str]] = {
        "arrival_s": [repr(arrival) for arrival in trace.arrival_s.tolist()],
        "input_tokens": [str(count) for count in trace.input_tokens.tolist()],
        "output_tokens": [str(count) for count in trace.output_tokens.tolist()],
    }
    if trace.session is not None:
        columns["session"] = trace.session.tolist()
    if trace.blocks is not None:
        columns["prefix_blocks"] = [" ".join(map(str, blocks)) for blocks in trace.blocks]
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(columns)
    rows.writerows(zip(*columns.values(), strict=True))
    return text.getvalue().encode()


def _block_size(source: Source) -> int:
    text = source.comments.get("block_size", str(DEFAULT_BLOCK_SIZE))
    if not text.isdecimal() or int(text) < 1:
        raise source.error(1, f"block_size is {text!r}, which is not a number of tokens")
    return int(text)


def _blocks(table: Table) -> Blocks:
    blocks: list[tuple[int, ...]] = []
    for row, text in enumerate(table.texts("prefix_blocks")):
        try:
            blocks.append(tuple(map(int, text.split())))
        except ValueError:
            line = table.source.first_line + 1 + row
            raise table.source.error(line, f"prefix_blocks is {text!r}, not whole numbers") from None
    return tuple(blocks)


FORMAT = Format("rosebench", "csv", FIELDS, read)
