"""Server-sent events, each with the stamp of the read that completed it.

https://html.spec.whatwg.org/multipage/server-sent-events.html, with LF or CRLF as the end of a line. A byte
order mark at the beginning is none of the first line.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TypeVar

import msgspec

T = TypeVar("T")

#: The end of an event with the blank line after it, and any more of these.
_BLANK_LINES = re.compile(rb"(\n\r?\n)[\r\n]*")
_DATA_LINE = re.compile(rb"^data: ?(.*)", re.MULTILINE)
#: An escape in JSON text; in a group of its own where it is half a pair of surrogates.
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)


def read_events(pieces: Sequence[tuple[float, bytes]], *, complete: bool) -> Iterator[tuple[float, bytes]]:
    """Data of each event and when its last byte was read.

    Events are found in the whole body at once, so how the bytes were split into reads changes only stamps.
    Bytes after the last blank line are an event too where the body came to its end; else half of one.
    """
    plain = 0
    for t, data in pieces:  # nearly always one event of one line each
        if not data.startswith(b"data: ") or not data.endswith(b"\n\n") or data.count(b"\n") != 2:
            break
        plain += 1
        if data := data[6:-2].strip():
            yield t, data
    pieces = pieces[plain:]
    body = b"".join([data for _, data in pieces])
    ends = list(accumulate([len(data) for _, data in pieces]))
    piece, end = 0, len(BOM_UTF8) if plain == 0 and body.startswith(BOM_UTF8) else 0
    for blank in _BLANK_LINES.finditer(body, end):
        event, end = body[end : blank.start()], blank.end()
        while ends[piece] < blank.end(1):
            piece += 1
        if data := _data(event):
            yield pieces[piece][0], data
    if complete and (data := _data(body[end:])):
        yield pieces[-1][0], data


def read_json(decoder: msgspec.json.Decoder[T], data: bytes) -> T:
    """An event's data. A server may send the halves of a character in two events, as bytes or as escapes;
    each half is one U+FFFD or more, as it is of servers that write that themselves.

    Raises:
        msgspec.MsgspecError: It is not JSON of the decoder's type.
    """
    try:
        try:
            return decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            text = data.decode("utf-8", "replace").encode()
            return decoder.decode(_ESCAPE.sub(lambda events: rb"\ufffd" if events[1] else events[0], text))
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deeply") from None


def _data(event: bytes) -> bytes:
    """The event's data lines, joined; empty for comments and other fields."""
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:].strip()
    return b"\n".join(value.rstrip(b"\r") for value in _DATA_LINE.findall(event)).strip()


class Part(msgspec.Struct):
    """`{"type":"text","text":…}`, or `{"type":"thinking","thinking":…}` with text or parts of its own."""

    text: str | None = None
    thinking: list[Part] | str | None = None


Content = list[Part] | str | None


class Function(msgspec.Struct):
    """A function that is called: name and arguments, or parts of them."""

    name: str | None = None
    arguments: str | None = None


def answer_of(content: Content) -> str:
    """The text without reasoning."""
    if isinstance(content, list):
        return "".join(part.text or "" for part in content)
    return content or ""


def thought_of(content: Content) -> str:
    """The reasoning."""
    return "".join(answer_of(part.thinking) for part in content) if isinstance(content, list) else ""
