"""However the bytes of a response are split into reads, the same is read out of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harness.loadgen.load_plan import RawResponse
from harness.loadgen.sse import read_events
from harness.mock_server.script import Behaviour, write_script
from harness.records.request_record import read_request

behaviours = st.builds(
    Behaviour,
    tokens=st.none() | st.integers(0, 8),
    tokens_per_chunk=st.integers(1, 4),
    chat=st.booleans(),
    empty_first=st.booleans(),
    held_back=st.booleans(),
    token_ids=st.booleans(),
    usage=st.sampled_from(["final", "continuous", "none"]),
    usage_off_by=st.integers(-1, 1),
    usage_ahead=st.integers(0, 6),
    role_usage=st.integers(0, 1),
    ids_in=st.sampled_from(["each", "first", "last"]),
    prompt_off_by=st.integers(-1, 2),
    finish_reason=st.sampled_from(["length", "stop", "content_filter", "cancelled", None]),
    comments=st.integers(0, 2),
    reasoning=st.integers(0, 3),
    tool_calls=st.integers(0, 2),
    end_token=st.booleans(),
    done=st.booleans(),
    crlf=st.booleans(),
    pings=st.booleans(),
    framing=st.sampled_from(["chunked", "length", "close"]),
    error_after=st.none() | st.integers(0, 3),
    half_event_after=st.none() | st.integers(0, 5),
)


def raw(reads: list[bytes]) -> RawResponse:
    return RawResponse(0, 0.0, 0.0, 99.0, [(float(t), data) for t, data in enumerate(reads)])


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({cut % len(data) for cut in cuts} - {0})
    return [data[start:stop] for start, stop in zip([0, *ends], [*ends, len(data)], strict=True)]


@given(behaviour=behaviours, cuts=st.lists(st.integers(0, 100_000), max_size=12))
def test_every_split_gives_the_same_record(behaviour: Behaviour, cuts: list[int]) -> None:
    response = b"".join(step.data for step in write_script(behaviour, 6, 3).steps)
    bytewise = read_request(raw([response[i : i + 1] for i in range(len(response))]), 6, 3)
    parts = read_request(raw(split(response, cuts)), 6, 3)
    times = ("t_head", "t_answer", "t_call", "t_called")
    untimed: dict[str, Any] = {"chunks": [], **dict.fromkeys(times)}
    assert replace(parts, **untimed) == replace(bytewise, **untimed)
    reads = np.cumsum([len(read) for read in split(response, cuts)])
    assert parts.t_head == np.searchsorted(reads, response.index(b"\r\n\r\n") + 4)
    last_bytes = [int(t) for t, tokens in bytewise.chunks for _ in range(tokens)]
    stamps = [t for t, tokens in parts.chunks for _ in range(tokens)]
    assert stamps == [np.searchsorted(reads, byte + 1) for byte in last_bytes]
    assert len({t for t, _ in parts.chunks}) == len(parts.chunks)


@given(
    texts=st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1)
        .map(str.strip)
        .filter(bool)
    ),
    newline=st.sampled_from([b"\n", b"\r\n"]),
    cuts=st.lists(st.integers(0, 100_000), max_size=12),
)
def test_an_event_has_the_stamp_of_the_read_with_its_last_byte(texts, newline, cuts):
    events = [b"data: " + text.encode() + newline * 2 for text in texts]
    body = b"".join(events)
    pieces = [(float(t), data) for t, data in enumerate(split(body, cuts))] if body else []
    found = list(read_events(pieces, complete=False))
    assert [data.decode().split() for _, data in found] == [
        text.encode().strip().decode().split() for text in texts
    ]
    end = 0
    for (stamp, _), event in zip(found, events, strict=True):
        end += len(event)
        read = 0
        for t, data in pieces:
            read += len(data)
            if read >= end:
                assert stamp == t
                break
