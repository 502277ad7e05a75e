"""The project's own CSV: `arrival_s,input_tokens,output_tokens[,session,prefix_blocks]`.

`prefix_blocks` are hashes of the leading blocks of the input, whole numbers between blanks. Lines
`# key: value` before the header may give `block_size` (tokens, else 16), `origin`, `licence`, `citation`
and `note`, so that a converted trace still says where it comes from.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

from harness.files import write_whole
from harness.traces.csv_formats import Table
from harness.traces.format import Format
from harness.traces.source import Source
from harness.traces.trace import Blocks, Trace

FIELDS = ("arrival_s", "input_tokens", "output_tokens")
DEFAULT_BLOCK_SIZE = 16
_ABOUT = ("origin", "licence", "citation", "note")


def read(source: Source) -> Trace:
    """Read the project's CSV."""
    table = Table.parse(source)
    blocks = _blocks(table) if "prefix_blocks" in source.fields else None
    return Trace.build(
        source.path.stem,
        table.numbers("arrival_s"),
        table.counts("input_tokens"),
        table.counts("output_tokens"),
        session=table.texts("session") if "session" in source.fields else None,
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


def write(trace: Trace, path: Path) -> None:
    """Write the project's CSV, whole or not at all. Raises UsageError if that is impossible."""
    write_whole(path, dump(trace))


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
