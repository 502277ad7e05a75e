"""HTTP/1.1 over one socket: requests in, responses and event streams out.

It is not an ASGI server, so that a stream costs one write a token: there is no task, queue or dictionary
between a token and its socket.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import select
import sys
import termios
import time
from collections import deque
from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import Any, cast

from roseinfer.server.http.buffers import Account, InputBuffer
from roseinfer.server.http.connections import Connections
from roseinfer.server.http.errors import HttpError, InternalError
from roseinfer.server.http.parser import HttpRequest, RequestParser
from roseinfer.server.http.response import EventStream, Producer, Response, write_nothing
from roseinfer.server.http.turns import Turn

log = logging.getLogger(__name__)

#: Bytes of answers buffered here, beyond the socket's buffer, above which the client counts as slow.
MAX_UNSENT_BYTES = 16 << 10
#: Seconds after which a client that has closed its sending side is probed: it may have gone.
PROBE_DELAYS = (0.05, 0.25)
#: Seconds: for an idle connection, for a request to arrive, for a client that does not read its answer at
#: all; and for a client that was refused to read the error.
IDLE_TIMEOUT = RECEIVE_TIMEOUT = STALL_TIMEOUT = 60.0
LINGER_TIMEOUT = 5.0
#: Seconds for a client to read what is buffered for it, even if it reads a little now and then: about 16 KiB
#: of a stream, or a whole answer.
DRAIN_TIMEOUT = 300.0


class Connection(asyncio.BufferedProtocol):
    """One client's connection. Its requests are answered one after the other.

    Attributes:
        peer: The client's address; empty if there is none.
        unsent: Bytes that count as held while the client does not read.
    """

    def __init__(self, connections: Connections) -> None:
        self.peer, self.unsent = "", 0
        self._connections = connections
        self.account = Account(connections.budget)
        self.parser = RequestParser(self._enqueue, self._continue, connections.admit, self.account)
        self.input = InputBuffer(self.account)
        self._waiting: deque[HttpRequest] = deque()  # parsed
        self._turn = Turn(self._take_turn)
        self._error: HttpError | None = None  # why nothing can be read on, once all before it is answered
        self._request: HttpRequest | None = None
        self._task: asyncio.Task[None] | None = None
        self._producer: Producer | None = None
        self._stream: EventStream | None = None
        self.paused = self.lingering = self._continuing = False
        self._ended = False  # the client sends no more
        self._deaf = False  # nothing is read
        self._probes: list[asyncio.TimerHandle] = []  # the client sends no more, and may have left
        self._since = time.monotonic()  # the last answer's end
        self._read_at = self._behind_since = self._since  # the client's last read; when it fell behind
        self._unread = 0  # bytes that the client had not received at the last check

    @property
    def busy(self) -> bool:
        """True while a request is being answered."""
        return self._request is not None

    @property
    def received(self) -> float:
        """Arrival of the current request: monotonic (s)."""
        assert self._request is not None
        return self._request.received

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not registered as subclasses of asyncio's.
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(MAX_UNSENT_BYTES)
        self._write: Callable[[bytes], None] = self.transport.write
        name = transport.get_extra_info("peername")
        self.peer = str(name[0]) if isinstance(name, tuple) else ""
        self._connections.all.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.closed(self)
        if self._task is not None:
            self._task.cancel()
            self._task = None  # its exception refers to this object, and to the request
        if self._producer is not None:
            self._producer.close()
            self._producer = None
        if self._stream is not None:
            self._stream.drop()
            self._stream = None
        for probe in self._probes:
            probe.cancel()
        self.parser.close()
        self._waiting.clear()
        self.input.clear()
        self._turn.cancel()
        self.account.hold(-self.account.held_bytes)
        self._error, self._request, self._write = None, None, write_nothing

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._connections.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.receive(self._connections.buffer[:nbytes])

    def receive(self, data: bytes | memoryview) -> None:
        """Take in received data."""
        if self.lingering or self._error is not None:  # it is dropped, in turns
            self._connections.turns.wait(self._turn)
        else:
            self.input.add(data)
            if not (self._turn.waiting or self._blocked):
                self._connections.turns.ask(self._turn)
        self._pause_or_resume_reading()

    def eof_received(self) -> bool:
        """Keep the connection open if the client, which has closed its sending side, may wait for answers."""
        self._ended = True
        if self._request is None and not self.input and not self._waiting:
            return False
        self._probe()
        return True

    def pause_writing(self) -> None:
        self.paused, self._read_at = True, time.monotonic()
        self._count_unsent(self.transport.get_write_buffer_size())
        if self._producer is not None:
            self._producer.pause()

    def resume_writing(self) -> None:
        self.paused, self._behind_since = False, time.monotonic()
        self._count_unsent(0)
        if self._producer is not None:
            self._producer.resume()
        self._advance()

    def _count_unsent(self, size: int) -> None:
        self.account.hold(size - self.unsent)
        self.unsent = size

    # One request after the other.

    def _take_turn(self, end: float) -> None:
        """Parse at least a piece, and more until `end` or until a request has begun; the next request waits
        for another turn."""
        over = False
        while not self._blocked:
            if self._waiting:
                self._answer_next()
                break
            if self._error is not None or not self.input or over:
                break
            try:
                self.parser.feed(self.input.take())
            except HttpError as error:
                self._error = error.with_traceback(None)
                self.input.clear()
            over = time.monotonic() >= end
        self._advance()
        self._pause_or_resume_reading()

    @property
    def _blocked(self) -> bool:
        """True if nothing can be parsed now: an answer is in progress, the client does not read, or the
        connection is closing."""
        return self._request is not None or self.paused or self.lingering or self.transport.is_closing()

    def _pause_or_resume_reading(self) -> None:
        dropping = self.lingering or self._error is not None
        deaf = self._turn.waiting if dropping else self.input.full
        if deaf != self._deaf and not (self._ended or self.transport.is_closing()):
            self._deaf = deaf
            if deaf:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def _advance(self) -> None:
        """Continue with the input that waits, unless blocked; close a connection that has all its answers."""
        if self._blocked:
            return
        if self._waiting or self.input:
            self._connections.turns.wait(self._turn)
        elif self._error is not None:
            self._refuse(self._error)
        elif self._continuing:
            self._continue()
        if self._ended and not (self._waiting or self.input or self.lingering):
            self.transport.close()

    def _enqueue(self, request: HttpRequest) -> None:
        self._waiting.append(request)
        self._continuing = False  # the body came without

    def _continue(self) -> None:
        """Ask for a body that the client holds back (`expect: 100-continue`), once all earlier requests are
        answered."""
        self._continuing = self._request is not None or bool(self._waiting)
        if not self._continuing:
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _answer_next(self) -> None:
        """Answer the next request: at once if possible, else in a task."""
        self._request = request = self._waiting.popleft()
        if request.refusal is not None:
            self.respond(self._connections.error_response(request.refusal))
            return
        try:
            answer = self._connections.handler(request, self)
        except Exception as error:
            answer = self._error_response(request, error)
        if isinstance(answer, CoroutineType):
            self._task = asyncio.get_running_loop().create_task(self._finish(request, answer))
        elif answer is not None:
            self.respond(cast(Response, answer))
        if self._ended and self._request is request:  # closed before this request was begun
            self._probe()

    async def _finish(self, request: HttpRequest, answer: Coroutine[Any, Any, Response | None]) -> None:
        try:
            response = await answer
        except Exception as error:
            response = self._error_response(request, error)
        self._task = None
        if response is not None:
            self.respond(response)

    def _error_response(self, request: HttpRequest, error: Exception) -> Response:
        """Return the response to a request whose handler has raised."""
        if not isinstance(error, HttpError):
            log.error("%s %.200r (request %s)", request.method, request.path, request.id, exc_info=error)
            error = InternalError()
        return self._connections.error_response(error)

    def _end_answer(self) -> None:
        request = self._request
        assert request is not None
        self.account.hold(-request.held_bytes)
        self._request = self._producer = self._stream = None
        self._since = time.monotonic()
        if not request.keep_alive or self._connections.stopping:
            self.transport.close()
        else:
            self._advance()

    def _refuse(self, error: HttpError) -> None:
        """Answer with an error after which nothing can be parsed. Later input is dropped, so that the client
        can read the error."""
        self.lingering, self._since = True, time.monotonic()
        self._write(self._connections.error_response(error).encode(keep_alive=False))
        if self._ended:
            self.transport.close()
        else:
            self.transport.write_eof()

    # Called by handlers and answers.

    def answer_with(self, producer: Producer) -> None:
        """Leave the response to `producer`."""
        self._producer = producer
        if self.paused:
            producer.pause()

    def respond(self, response: Response) -> None:
        """Send a whole response."""
        request = self._request
        if request is None or self.transport.is_closing():
            return
        data = response.encode(
            keep_alive=request.keep_alive and not self._connections.stopping,
            with_body=request.method != "HEAD",
            request_id=request.id,
            old=not request.chunked,
        )
        self._write(data)
        self._end_answer()

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
        self._stream = EventStream(self._write, self._connections.writes, chunked=request.chunked)
        self._stream.begin(event, keep_alive=request.keep_alive, request_id=request.id)
        return self._stream.write

    def end_stream(self, *events: bytes) -> None:
        """End the event stream with these events; the connection can carry the next request."""
        assert self._stream is not None
        self._stream.end(events)
        self._end_answer()

    def close(self) -> None:
        """Close the connection once everything written is sent."""
        self.transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    # Clients that leave, or make no progress.

    def _probe(self) -> None:
        """Probe the client with an interim response, which a client that has gone answers with a reset and
        others ignore. A stream needs none."""
        if self._request is not None and self._request.chunked and self._stream is None:
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
        loop = asyncio.get_running_loop()
        self._probes += [loop.call_later(delay, self._abort_if_gone) for delay in PROBE_DELAYS]

    @property
    def _cannot_be_probed(self) -> bool:
        """True if no probe can be sent before the answer: HTTP/1.0 has no interim responses."""
        return self._request is not None and not self._request.chunked and self._stream is None

    def _abort_if_gone(self) -> None:
        if self._has_left():
            self.abort()

    def _has_left(self) -> bool:
        """Return whether the client has closed or reset the connection."""
        return bool(self._poll() & (select.POLLERR | select.POLLHUP))

    def _poll(self) -> int:
        """Return the socket's events (poll(2)). POLLRDHUP: the client has closed its sending side, even if
        not all it sent is read."""
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket"), select.POLLRDHUP)
        return sum(events for _, events in poll.poll(0))

    def _count_unread(self, now: float) -> None:
        """Count the bytes that the client has not received, here and in the socket's buffer; 0 if that buffer
        holds all of them. Fewer than at the last check are progress."""
        unread = self.transport.get_write_buffer_size()
        if self.paused:
            self._count_unsent(unread)
        if unread:
            in_kernel = fcntl.ioctl(self.transport.get_extra_info("socket"), termios.TIOCOUTQ, bytes(4))
            unread += int.from_bytes(in_kernel, sys.byteorder)
        if unread < self._unread:
            self._read_at = now
        if not self._unread:
            self._behind_since = now
        self._unread = unread

    def check(self, now: float) -> None:
        """Close the connection if it has made no progress for too long by the time `now` (monotonic, s)."""
        self._count_unread(now)
        if self._unread and now - self._behind_since > DRAIN_TIMEOUT:
            self.abort()
            return
        if self._probes and (self._has_left() or self._cannot_be_probed):
            self.abort()
            return
        if self._deaf and not self._probes and self._poll() & select.POLLRDHUP:
            self._probe()
        receiving = self._request is None and self.parser.receiving and not self.lingering
        if self.lingering:
            since, limit = self._since, LINGER_TIMEOUT
        elif self.paused:
            since, limit = self._read_at, STALL_TIMEOUT
        elif self._request is not None:
            return
        elif receiving:
            since, limit = self.parser.began, RECEIVE_TIMEOUT
        else:
            since, limit = max(self._since, self._read_at), IDLE_TIMEOUT
        if now - since <= limit:
            return
        if receiving and not self.paused:
            self._refuse(HttpError(408, f"the request took longer than {RECEIVE_TIMEOUT:.0f} s to come in"))
        else:
            self.abort()
