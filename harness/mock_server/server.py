"""The mock server: one heap of due times, one epoll set, and a log of what was done when.

It runs on plain sockets, so that no event loop's way of reading and writing is in what it writes down.
"""

from __future__ import annotations

import heapq
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic, time
from typing import Any

import httptools
import msgspec
from msgspec.structs import replace

from harness.mock_server.script import Behaviour, Script, ServedRequest, page, plain, refusal, write_script

#: Writes in a row before requests that came meanwhile are read.
_BATCH = 64
#: socket(7): close discards what is unsent and resets the connection.
_AT_ONCE = struct.pack("ii", 1, 0)
_CHAT = "/chat/completions"
#: Pages on which other servers tell their context, version or settings.
_OTHERS = ("/props", "/api/ps", "/version", "/server_info")
#: Linux: socket(7). Each read then comes with the CLOCK_REALTIME at which its last byte arrived.
SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("qq")
_READ_BYTES = 1 << 16

#: Called with the connection, the path, the body, and when the request had arrived (CLOCK_MONOTONIC).
OnRequest = Callable[["Connection", str, bytes, float], None]


class Connection:
    """Carries one request at a time, with the kernel's time of its arrival. Writing never blocks: what the
    kernel does not take waits."""

    def __init__(self, sock: socket.socket, on_request: OnRequest) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.unsent = bytearray()
        self.closing = False
        self.served = 0
        self._on_request = on_request
        self._parser = httptools.HttpRequestParser(self)
        self._path = ""
        self._body = b""
        self._arrived = 0.0

    def read(self) -> bool:
        """Take in what came; False when the peer is gone or does not speak HTTP."""
        try:
            data, notes, _, _ = self.sock.recvmsg(_READ_BYTES, 64)
        except BlockingIOError:
            return True
        except OSError:
            return False
        now = monotonic()
        self._arrived = now
        for _level, _kind, stamp in notes:
            seconds, nanoseconds = _TIMESPEC.unpack(stamp[:16])
            self._arrived = min(now, seconds + nanoseconds * 1e-9 - (time() - monotonic()))
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            return False
        return bool(data)

    def write(self, data: bytes) -> bool:
        """Hand `data` to the kernel; False when some of it has to wait, or the peer is gone."""
        if not self.unsent:
            try:
                sent = self.sock.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return True  # the next read says so
            if sent == len(data):
                return True
            data = data[sent:]
        self.unsent += data
        return False

    def flush(self) -> bool:
        """Write what waits; True when nothing waits any more."""
        data, self.unsent = bytes(self.unsent), bytearray()
        return self.write(data)

    def on_message_begin(self) -> None:
        self._body = b""

    def on_url(self, url: bytes) -> None:
        self._path = url.decode("ascii", "replace")

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._on_request(self, self._path, self._body, self._arrived)
        self.served += 1


class _Body(msgspec.Struct):
    """Fields that are read of a request's body."""

    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    user: str | None = None
    behaviour: dict[str, Any] | None = None


def _length(request: _Body, behaviour: Behaviour) -> int:
    """Tokens of the prompt: a word is one, and so is an id."""
    if request.messages is not None:
        words = sum(len(str(message.get("content", "")).split()) for message in request.messages)
        return words + behaviour.template_tokens
    prompt = request.prompt or ()
    return len(prompt.split()) if isinstance(prompt, str) else len(prompt)


def _refused(body: bytes, behaviour: Behaviour) -> str | None:
    """Return the reason why a body is refused; None if it is not."""
    if not behaviour.refuses:
        return None
    fields = msgspec.json.decode(body)
    for field in behaviour.refuses:
        if field in fields and (field != "prompt" or isinstance(fields[field], list)):
            return f"Unexpected value of {field}" if behaviour.names_field else "Bad request"
    return None


class _Answer:
    """A request that is being answered."""

    def __init__(
        self, connection: Connection, behaviour: Behaviour, script: Script, served: ServedRequest
    ) -> None:
        self.connection: Connection | None = connection
        self.behaviour, self.script, self.served = behaviour, script, served
        self.steps = iter(script.steps)
        self.step = next(self.steps)
        self.start = 0.0


class MockServer:
    """Answers with given behaviours at given times, and logs the true times.

    A request's time is the kernel's stamp of its arrival, a chunk's is taken when its bytes are handed to the
    kernel. Due times are absolute, so that a late write delays none after it, unless `keep_gaps` is set: then
    no two chunks of a stream are ever closer than they should be, however late the server is.

    Args:
        behaviours: Given to requests in turn, in the order of arrival; a request's own `behaviour` wins.
        slots: Requests answered at once; the others queue, first come first served. None: all.
        context: Its context in tokens, which its list of models tells; None: it does not.
        metrics: Whether it says on `/metrics` what runs and what waits, by the names of vLLM.
        log_fd: Where served requests are recorded as JSON lines, each when its answer has ended.
    """

    def __init__(
        self,
        behaviours: Sequence[Behaviour],
        slots: int | None,
        log_fd: int | None,
        *,
        keep_gaps: bool = False,
        context: int | None = None,
        metrics: bool = False,
    ) -> None:
        model: dict[str, Any] = {"id": "mock", "object": "model"}
        if context is not None:
            model["max_model_len"] = context
        self._models = {"object": "list", "data": [model]}
        self._behaviours = behaviours
        self._slots = slots
        self._log_fd = log_fd
        self._keep_gaps = keep_gaps
        self._metrics = metrics
        self._arrived = 0
        self._cached_prompts: set[str | tuple[int, ...]] = set()
        self._running = self._generated = 0
        self._queue: deque[_Answer] = deque()
        self._due: list[tuple[float, int, _Answer]] = []
        self._answers: dict[Connection, _Answer] = {}
        self._connections: dict[int, Connection] = {}
        self._epoll = select.epoll()
        self._listener = socket.socket()

    def listen(self, host: str, port: int) -> int:
        """Start to accept connections. Returns the port."""
        self._listener = socket.create_server((host, port), backlog=4096)
        self._listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)  # connections inherit it
        self._listener.setblocking(False)
        self._epoll.register(self._listener, select.EPOLLIN)
        return int(self._listener.getsockname()[1])

    def serve(self, parent_fd: int | None = None) -> None:
        """Serve until interrupted or, where `parent_fd` is given, until that is closed at its other end."""
        if parent_fd is not None:
            self._epoll.register(parent_fd, select.EPOLLIN)
        while True:
            for fd, event in self._epoll.poll(self._wait()):
                connection = self._connections.get(fd)
                if connection is not None:
                    self._serve(connection, event)
                elif fd == self._listener.fileno():
                    self._accept()
                elif fd == parent_fd and not os.read(fd, 1):
                    return
            self._write_due()

    def _wait(self) -> float | None:
        """Sleep until the next write is due or something comes in; how long epoll may then still wait.

        epoll_wait(2) counts in milliseconds, select(2) in microseconds.
        """
        if not self._due:
            return None
        remaining_s = self._due[0][0] - monotonic()
        if remaining_s > 0:
            select.select([self._epoll.fileno()], [], [], remaining_s)
        return 0.0

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            connection = Connection(sock, self._arrive)
            self._connections[sock.fileno()] = connection
            self._epoll.register(sock, select.EPOLLIN)

    def _serve(self, connection: Connection, event: int) -> None:
        if event & select.EPOLLOUT and connection.flush():
            if connection.closing:
                self._drop(connection)
                return
            self._epoll.modify(connection.sock, select.EPOLLIN)
        if event & ~select.EPOLLOUT and not connection.read():
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        """Close a connection; the request in flight on it is over."""
        fd = connection.sock.fileno()
        self._epoll.unregister(fd)
        del self._connections[fd]
        connection.sock.close()
        answer = self._answers.pop(connection, None)
        if answer is None:
            return
        answer.connection = None
        if answer.served.outcome != "stalled":
            answer.served.outcome = "aborted"
        self._record(answer.served)
        if answer in self._queue:
            self._queue.remove(answer)
        elif keeps_ms := answer.behaviour.keeps_ms:
            self._generated += round(keeps_ms / answer.behaviour.itl_ms)
            heapq.heappush(self._due, (monotonic() + keeps_ms / 1e3, ~answer.served.request, answer))
        else:
            self._release()

    def _write(self, connection: Connection, data: bytes) -> None:
        if not connection.write(data):
            self._epoll.modify(connection.sock, select.EPOLLIN | select.EPOLLOUT)

    def _arrive(self, connection: Connection, path: str, body: bytes, arrived: float) -> None:
        """Take in a whole request."""
        if path in ("/health", "/v1/models"):
            self._write(connection, plain(200, self._models).steps[0].data)
            return
        if path.partition("?")[0] in _OTHERS:
            self._write(connection, plain(404, {}).steps[0].data)
            return
        if path == "/metrics" and self._metrics:
            self._write(connection, page(self._own_metrics()).steps[0].data)
            return
        served = ServedRequest(self._arrived, None, 200, arrived, arrived)
        behaviour = self._behaviours[self._arrived % len(self._behaviours)]
        self._arrived += 1
        try:
            request = msgspec.json.decode(body, type=_Body)
            if request.behaviour is not None:
                settings = {**msgspec.structs.asdict(behaviour), **request.behaviour}
                behaviour = msgspec.convert(settings, Behaviour)
        except msgspec.MsgspecError:
            script = refusal(400)
        else:
            if path.endswith(_CHAT):
                behaviour = replace(behaviour, chat=True)
            if not connection.served:
                behaviour = replace(behaviour, drop_ms=None)
            prompt, length = request.prompt, _length(request, behaviour)
            served.user = request.user
            behaviour = self._from_cache(behaviour, prompt, length)
            limit = request.max_tokens or request.max_completion_tokens or 16
            refused = _refused(body, behaviour)
            script = (
                write_script(behaviour, limit, length)
                if refused is None
                else plain(400, {"error": {"message": refused}})
            )
        served.status = script.status
        answer = self._answers[connection] = _Answer(connection, behaviour, script, served)
        if self._slots is not None and self._running >= self._slots:
            self._queue.append(answer)
        else:
            # Between its arrival and now a slot may have become free: it starts after that.
            self._start(answer, arrived if self._slots is None else monotonic())

    def _own_metrics(self) -> str:
        running, waiting = self._running, len(self._queue)
        gauges = f"vllm:num_requests_running {running}\nvllm:num_requests_waiting {waiting}\n"
        return f"{gauges}vllm:generation_tokens_total {self._generated}\n"

    def _from_cache(self, behaviour: Behaviour, prompt: str | list[int] | None, length: int) -> Behaviour:
        """Answer a prompt that came before, where there is a cache."""
        if behaviour.cached_ttft_ms is None:
            return behaviour
        key = prompt if isinstance(prompt, str) else tuple(prompt or ())
        if key not in self._cached_prompts:
            self._cached_prompts.add(key)
            return behaviour
        reported = None if behaviour.cached_tokens is None else length - 1
        return replace(behaviour, ttft_ms=behaviour.cached_ttft_ms, cached_tokens=reported)

    def _start(self, answer: _Answer, now: float) -> None:
        self._running += 1
        answer.start = answer.served.t_started = now
        heapq.heappush(self._due, (now + answer.step.after_s, answer.served.request, answer))

    def _write_due(self) -> None:
        due, keep_gaps, replace = self._due, self._keep_gaps, heapq.heapreplace
        for _ in range(_BATCH):
            if not due:
                return
            when, number, answer = due[0]
            now = monotonic()
            if when > now:
                return
            connection = answer.connection
            if connection is None:
                heapq.heappop(due)
                if number < 0:  # its client left, and now its slot is free
                    self._release()
                continue
            step, following = answer.step, next(answer.steps, None)
            for tokens in step.tokens:
                answer.served.writes.append((now, tokens))
                self._generated += tokens
            if step.answers and answer.served.t_answer is None:
                answer.served.t_answer = now
            if following is None:
                heapq.heappop(due)
                self._end(answer, connection, step.data, now)
                continue
            if not connection.write(step.data):
                self._epoll.modify(connection.sock, select.EPOLLIN | select.EPOLLOUT)
            if keep_gaps:
                answer.start += now - when
            answer.step = following
            replace(due, (answer.start + following.after_s, number, answer))

    def _end(self, answer: _Answer, connection: Connection, data: bytes, now: float) -> None:
        """Write the last bytes of an answer."""
        answer.served.t_end = now
        answer.served.outcome = answer.script.outcome
        if answer.script.outcome == "stalled":  # it keeps its slot until the client leaves
            self._write(connection, data)
            return
        self._record(answer.served)  # first: a client that has the answer can read the record
        del self._answers[connection]
        self._write(connection, data)
        if answer.script.close or answer.script.outcome == "cut":
            connection.closing = True
            if answer.script.reset:
                connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            if not connection.unsent:
                self._drop(connection)
        self._release()

    def _record(self, served: ServedRequest) -> None:
        if self._log_fd is not None:
            os.write(self._log_fd, msgspec.json.encode(served) + b"\n")

    def _release(self) -> None:
        self._running -= 1
        if self._queue:
            self._start(self._queue.popleft(), monotonic())
