"""HTTP/1.1 over one socket: requests in, responses and event streams out.

It is not an ASGI server, so that a stream costs one write a token: there is no task, queue or dictionary
between a token and its socket.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import Any, cast

from roseinfer.server.http import writer
from roseinfer.server.http.budget import Account
from roseinfer.server.http.chunks import Chunks, write_nothing
from roseinfer.server.http.client_state import has_left, sends_no_more, unread_bytes
from roseinfer.server.http.connections import Connections
from roseinfer.server.http.errors import HttpError, InternalError
from roseinfer.server.http.parser import HttpRequest, RequestParser
from roseinfer.server.http.producer import Producer
from roseinfer.server.http.response import Response
from roseinfer.server.http.time_limits import (
    IDLE_TIMEOUT,
    LINGER_TIMEOUT,
    RECEIVE_TIMEOUT,
    STALL_TIMEOUT,
    Reading,
)
from roseinfer.server.http.turns import Turn
from roseinfer.server.http.unparsed import Unparsed

log = logging.getLogger(__name__)

#: Bytes of answers buffered here, beyond the socket's buffer, above which the client counts as slow.
MAX_UNSENT_BYTES = 16 << 10
#: Seconds after which a client that has closed its sending side is probed: it may have gone.
PROBE_DELAYS = (0.05, 0.25)


class Connection(asyncio.BufferedProtocol):
    """One client's connection. Its requests are answered one after the other."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._account = Account(connections.budget)
        self._parser = RequestParser(self._take, self._continue, connections.admit, self._account)
        self._unparsed = Unparsed(self._account)
        self._waiting: deque[HttpRequest] = deque()  # parsed
        self._turn = Turn(self._take_turn)
        self._error: HttpError | None = None  # why nothing can be read on, once all before it is answered
        self._request: HttpRequest | None = None
        self._task: asyncio.Task[None] | None = None
        self._producer: Producer | None = None
        self._chunks: Chunks | None = None  # of the stream that is the response
        self._paused = self._lingering = self._continuing = False
        self._ended = self._streaming = False  # the client sends no more; the response's head is written
        self._deaf = False  # nothing is read
        self._probes: list[asyncio.TimerHandle] = []  # the client sends no more, and may have left
        self.unsent = 0  # bytes that count as held while the client does not read
        self._since = time.monotonic()
        self._reading = Reading()

    @property
    def busy(self) -> bool:
        return self._request is not None

    @property
    def peer(self) -> str:
        """The client's address; empty where there is none."""
        return self._peer

    @property
    def received(self) -> float:
        """When the current request arrived: monotonic (s)."""
        assert self._request is not None
        return self._request.received

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not registered as subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(MAX_UNSENT_BYTES)
        self._write: Callable[[bytes], None] = self._transport.write
        name = transport.get_extra_info("peername")
        self._peer = str(name[0]) if isinstance(name, tuple) else ""
        self._connections.all.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.closed(self)
        if self._task is not None:
            self._task.cancel()
            self._task = None  # its exception refers to this object, and to the request
        if self._producer is not None:
            self._producer.close()
            self._producer = None
        self._parser.close()
        self._waiting.clear()
        if self._chunks is not None:
            self._chunks.drop()
            self._chunks = None
        for probe in self._probes:
            probe.cancel()
        self._unparsed.clear()
        self._turn.cancel()
        self._account.close()
        self._error, self._request, self._write = None, None, write_nothing

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._connections.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.receive(self._connections.buffer[:nbytes])

    def receive(self, data: bytes | memoryview) -> None:
        """Take in received data."""
        if self._lingering or self._error is not None:  # it is dropped, in turns
            self._connections.turns.wait(self._turn)
        else:
            self._unparsed.add(data)
            if not (self._turn.waiting or self._blocked):
                self._connections.turns.ask(self._turn)
        self._see_to_reading()

    def _take_turn(self, end: float) -> None:
        """Parse at least a piece, and more until `end` or until a request has begun; the next request waits
        for another turn."""
        over = False
        while not self._blocked:
            if self._waiting:
                self._next()
                break
            if self._error is not None or not self._unparsed or over:
                break
            self._parse(self._unparsed.take())
            over = time.monotonic() >= end
        self._advance()
        self._see_to_reading()

    @property
    def _blocked(self) -> bool:
        """Whether nothing can be parsed now: an answer is in progress, the client does not read, or the
        connection is closing."""
        return self._request is not None or self._paused or self._lingering or self._transport.is_closing()

    def _see_to_reading(self) -> None:
        dropping = self._lingering or self._error is not None
        deaf = self._turn.waiting if dropping else self._unparsed.enough
        if deaf != self._deaf and not (self._ended or self._transport.is_closing()):
            self._deaf = deaf
            if deaf:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def eof_received(self) -> bool:
        """The client has closed its sending side. It may have gone, or wait for answers: then the connection
        stays open."""
        self._ended = True
        if self._request is None and not self._unparsed and not self._waiting:
            return False
        self._see_whether_it_is_there()
        return True

    def _see_whether_it_is_there(self) -> None:
        """Probe the client with an interim response, which a client that has gone answers with a reset and
        others ignore. A stream needs none."""
        request = self._request
        if request is not None and request.chunked and not self._streaming:
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
        loop = asyncio.get_running_loop()
        self._probes += [loop.call_later(delay, self._abort_if_gone) for delay in PROBE_DELAYS]

    def _abort_if_gone(self) -> None:
        if has_left(self._transport):
            self.abort()

    def pause_writing(self) -> None:
        self._paused, self._reading.last = True, time.monotonic()
        self._count_unsent(self._transport.get_write_buffer_size())
        if self._producer is not None:
            self._producer.pause()

    def resume_writing(self) -> None:
        self._paused = False
        self._reading.caught_up()
        self._count_unsent(0)
        if self._producer is not None:
            self._producer.resume()
        self._advance()

    def _count_unsent(self, size: int) -> None:
        self._account.hold(size - self.unsent)
        self.unsent = size

    # One request after the other.

    def _parse(self, data: bytes) -> None:
        """Parse a piece of received data."""
        try:
            self._parser.feed(data)
        except HttpError as error:
            self._error = error.with_traceback(None)
            self._unparsed.clear()

    def _advance(self) -> None:
        """Go on with what waits, unless blocked."""
        if self._blocked:
            return
        if self._waiting or self._unparsed:
            self._connections.turns.wait(self._turn)
        elif self._error is not None:
            self._refuse(self._error)
        elif self._continuing:
            self._continue()
        self._close_if_done()

    def _close_if_done(self) -> None:
        """Close the connection if the client sends no more and has all its answers."""
        if self._ended and not (self.busy or self._waiting or self._unparsed or self._lingering):
            self._transport.close()

    def _take(self, request: HttpRequest) -> None:
        self._waiting.append(request)
        self._continuing = False  # the body came without

    def _continue(self) -> None:
        """The client asks whether to send a body (`expect: 100-continue`): it may once all earlier requests
        are answered."""
        self._continuing = self._request is not None or bool(self._waiting)
        if not self._continuing:
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _next(self) -> None:
        """Answer the next request: at once if possible, else in a task."""
        self._request = request = self._waiting.popleft()
        if request.refusal is not None:
            self.respond(self._connections.error_response(request.refusal))
            return
        try:
            answer = self._connections.handler(request, self)
        except Exception as error:
            answer = self._failed(request, error)
        if isinstance(answer, CoroutineType):
            self._task = asyncio.get_running_loop().create_task(self._finish(request, answer))
        elif answer is not None:
            self.respond(cast(Response, answer))
        if self._ended and self._request is request:  # closed before this request was begun
            self._see_whether_it_is_there()

    async def _finish(self, request: HttpRequest, answer: Coroutine[Any, Any, Response | None]) -> None:
        try:
            response = await answer
        except Exception as error:
            response = self._failed(request, error)
        self._task = None
        if response is not None:
            self.respond(response)

    def _failed(self, request: HttpRequest, error: Exception) -> Response:
        """The response to a request whose handler has raised."""
        if isinstance(error, HttpError):
            return self._connections.error_response(error)
        log.error("%s %.200r (request %s)", request.method, request.path, request.id, exc_info=error)
        return self._connections.error_response(InternalError())

    def _done(self) -> None:
        request, self._producer = self._request, None
        assert request is not None
        self._account.hold(-request.held)
        self._request, self._since, self._streaming = None, time.monotonic(), False
        if not request.keep_alive or self._connections.stopping:
            self._transport.close()
        else:
            self._advance()

    def _refuse(self, error: HttpError) -> None:
        """Answer with an error after which nothing can be parsed. What still comes is dropped, so that the
        client can read the error."""
        self._lingering, self._since = True, time.monotonic()
        self._write(writer.whole(self._connections.error_response(error), keep_alive=False, with_body=True))
        if self._ended:
            self._transport.close()
        else:
            self._transport.write_eof()

    # What handlers and answers call.

    def answer_with(self, producer: Producer) -> None:
        """Leave the response to `producer`."""
        self._producer = producer
        if self._paused:
            producer.pause()

    def respond(self, response: Response) -> None:
        """Send a whole response."""
        request = self._request
        if request is None or self._transport.is_closing():
            return
        keep_alive = request.keep_alive and not self._connections.stopping
        with_body = request.method != "HEAD"
        data = writer.whole(
            response, keep_alive=keep_alive, with_body=with_body, request_id=request.id,
            old=not request.chunked,
        )  # fmt: skip
        self._write(data)
        self._done()

    def interrupt(self, error: HttpError) -> None:
        """End the response that is being made with `error`."""
        if self._producer is not None:
            self._producer.fail(error)
        elif self._request is not None:
            if self._task is not None:
                self._task.cancel()
                self._task = None
            self.respond(self._connections.error_response(error))

    def begin_stream(self, event: bytes) -> Callable[[bytes], None]:
        """Start an event stream with its first event. Returns the function that writes the next."""
        request = self._request
        assert request is not None
        request.keep_alive &= request.chunked  # without chunks, the stream ends with the connection
        self._streaming = True
        head = writer.stream_head(
            keep_alive=request.keep_alive, chunked=request.chunked, request_id=request.id
        )
        self._write(head + (writer.chunk(event) if request.chunked else event))  # one system call
        if not request.chunked:
            return self._write
        self._chunks = Chunks(self._write, self._connections.joined)
        return self._chunks.write

    def end_stream(self, *events: bytes) -> None:
        """End the event stream with these events; the connection can carry the next request."""
        if self._chunks is None:
            self._write(b"".join(events))
        else:
            self._chunks.end(events)
            self._chunks = None
        self._done()

    def check(self, now: float) -> None:
        """Close the connection if it has made no progress for too long."""
        self._reading.see(unread_bytes(self._transport), now)
        if self._paused:
            self._count_unsent(self._transport.get_write_buffer_size())
        if self._reading.too_slow(now):
            self.abort()
            return
        if self._probes and (has_left(self._transport) or self._cannot_be_asked):
            self.abort()
            return
        if self._deaf and not self._probes and sends_no_more(self._transport):
            self._see_whether_it_is_there()
        receiving = self._request is None and self._parser.receiving and not self._lingering
        if self._lingering:
            since, limit = self._since, LINGER_TIMEOUT
        elif self._paused:
            since, limit = self._reading.last, STALL_TIMEOUT
        elif self._request is not None:
            return
        elif receiving:
            since, limit = self._parser.began, RECEIVE_TIMEOUT
        else:
            since, limit = max(self._since, self._reading.last), IDLE_TIMEOUT
        if now - since <= limit:
            return
        if receiving and not self._paused:
            self._refuse(HttpError(408, f"the request took longer than {RECEIVE_TIMEOUT:.0f} s to come in"))
        else:
            self.abort()

    @property
    def _cannot_be_asked(self) -> bool:
        """Whether the client cannot be probed before its answer is written: HTTP/1.0 has no interim
        responses."""
        return self._request is not None and not self._request.chunked and not self._streaming

    def close(self) -> None:
        """Close the connection once everything written is sent."""
        self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()
