"""Where a response ends, however its bytes arrive."""

from __future__ import annotations

import gc
import weakref

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.loadgen.http import ResponseEnd
from harness.mock_server.script import Behaviour, write_script

TRAP = b"a payload\r\n0\r\n\r\nthat looks like an end\r\n0\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(TRAP), TRAP)
TRAILERS = CHUNKED[:-2] + b"Server-Timing: total\r\n\r\n"
EARLY = b"HTTP/1.1 103 Early Hints\r\nLink: </>\r\n\r\n" + CHUNKED
LENGTH = b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops"
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"
MOCK = b"".join(step.data for step in write_script(Behaviour(crlf=True), 5, 3).steps)


@pytest.mark.parametrize("response", [CHUNKED, TRAILERS, EARLY, LENGTH, EMPTY, MOCK])
@given(data=st.data())
def test_the_end_is_the_last_byte_however_the_bytes_are_split(response: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(response) - 1), max_size=8)))
    end = ResponseEnd()
    for start, stop in zip([0, *cuts], [*cuts, len(response)], strict=True):
        assert not end.complete
        end.feed(response[start:stop])
    assert end.complete and end.keep_alive


@given(cut=st.integers(0, len(CHUNKED) - 1))
def test_a_close_within_a_framed_response_is_no_end(cut: int) -> None:
    end = ResponseEnd()
    end.feed(CHUNKED[:cut])
    assert not end.closed()


def test_nothing_of_a_response_waits_for_the_garbage_collector() -> None:
    gc.disable()
    try:
        end = ResponseEnd()
        end.feed(CHUNKED)
        end.release()
        gone = weakref.ref(end)
        del end
        assert gone() is None
    finally:
        gc.enable()


def test_a_close_ends_a_response_without_a_length() -> None:
    end = ResponseEnd()
    end.feed(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
    assert not end.closed()
    end.feed(b"\r\ndata: x\n\n")
    assert end.closed() and not end.complete


def test_connection_close_is_heeded() -> None:
    end = ResponseEnd()
    end.feed(LENGTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
    assert end.complete and not end.keep_alive


def test_what_is_not_http_is_refused() -> None:
    with pytest.raises(httptools.HttpParserError):
        ResponseEnd().feed(b"SSH-2.0-OpenSSH_9.6\r\n")
