"""The golden server: one heap of due times, one alarm, and a log of what was done when."""

from __future__ import annotations

import asyncio
import heapq
import os
from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Any, cast

import httptools
import msgspec

from harness.clock import Alarm
from harness.golden.behaviour import Behaviour, Deed
from harness.golden.script import Script, plain, refusal, write_script

#: Writes in a row before requests that came meanwhile are read: `t_received` is late by no more than these.
_BATCH = 32


class _Body(msgspec.Struct):
    """What is read of a request's body."""

    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    max_tokens: int = 16
    user: str | None = None
    golden: dict[str, Any] | None = None


class _Answer:
    """A request that is being answered."""

    __slots__ = ("connection", "deed", "position", "script", "start")

    def __init__(self, connection: _Connection, script: Script, deed: Deed) -> None:
        self.connection = connection
        self.script = script
        self.deed = deed
        self.position = 0
        self.start = 0.0


class GoldenServer:
    """Answers as it is told, at the times it is told, and writes down the times that it truly kept.

    Due times are absolute: a late write delays none after it.

    Args:
        behaviours: Given to requests in turn, in the order of arrival; a request's own `golden` wins.
        slots: Requests answered at once; the others queue, first come first served. None: all.
        log_fd: Where the deeds go as JSON lines, each when its request is over.
    """

    def __init__(self, behaviours: Sequence[Behaviour], slots: int | None, log_fd: int | None) -> None:
        self._behaviours = behaviours
        self._slots = slots
        self._log_fd = log_fd
        self._arrived = 0
        self._running = 0
        self._queue: deque[_Answer] = deque()
        self._due: list[tuple[float, int, _Answer]] = []
        self._alarm = Alarm(asyncio.get_running_loop(), self._wake)

    async def listen(self, host: str, port: int) -> asyncio.Server:
        """Start to accept connections."""
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: _Connection(self), host, port, backlog=4096)

    def arrive(self, connection: _Connection, path: str, body: bytes, now: float) -> _Answer | None:
        """A request came in at `now`. Returns the answer under way."""
        if path in ("/health", "/v1/models"):
            connection.transport.write(
                plain(200, {"data": [{"id": "golden", "object": "model"}]}).steps[0].data
            )
            return None
        deed = Deed(self._arrived, None, 200, now, now)
        behaviour = self._behaviours[self._arrived % len(self._behaviours)]
        self._arrived += 1
        try:
            request = msgspec.json.decode(body, type=_Body)
            if request.golden is not None:
                settings = {**msgspec.structs.asdict(behaviour), **request.golden}
                behaviour = msgspec.convert(settings, Behaviour)
        except msgspec.MsgspecError:
            script = refusal(400)
        else:
            prompt = request.prompt
            length = len(prompt.split()) if isinstance(prompt, str) else len(prompt or request.messages or ())
            deed.user = request.user
            script = write_script(behaviour, request.max_tokens, length)
        deed.status = script.status
        answer = _Answer(connection, script, deed)
        if self._slots is not None and self._running >= self._slots:
            self._queue.append(answer)
        else:
            self._start(answer, now)
        return answer

    def abandon(self, answer: _Answer) -> None:
        """The client went away."""
        if answer.deed.outcome != "stalled":
            answer.deed.outcome = "aborted"
        self._record(answer.deed)
        if answer in self._queue:
            self._queue.remove(answer)
        else:
            self._release()

    def _start(self, answer: _Answer, now: float) -> None:
        self._running += 1
        answer.start = answer.deed.t_started = now
        self._plan(answer)
        self._alarm.set(self._due[0][0])

    def _plan(self, answer: _Answer) -> None:
        due = answer.start + answer.script.steps[answer.position].after_s
        heapq.heappush(self._due, (due, answer.deed.request, answer))

    def _wake(self) -> None:
        due = self._due
        for _ in range(_BATCH):
            if not due or due[0][0] > monotonic():
                break
            answer = heapq.heappop(due)[2]
            if answer.connection.answer is answer:
                self._step(answer)
        if due:
            self._alarm.set(due[0][0])

    def _step(self, answer: _Answer) -> None:
        script, deed, connection = answer.script, answer.deed, answer.connection
        step = script.steps[answer.position]
        answer.position += 1
        if step.tokens:
            deed.writes.append((monotonic(), step.tokens))
        if answer.position < len(script.steps):
            connection.transport.write(step.data)
            self._plan(answer)
            return
        deed.t_end = monotonic()
        deed.outcome = script.outcome
        if script.outcome == "stalled":  # it keeps its slot until the client leaves
            connection.transport.write(step.data)
            return
        self._record(deed)  # first, so that whoever has the answer finds the deed
        connection.answer = None
        connection.transport.write(step.data)
        if script.close or script.outcome == "cut":
            connection.transport.close()
        self._release()

    def _record(self, deed: Deed) -> None:
        if self._log_fd is not None:
            os.write(self._log_fd, msgspec.json.encode(deed) + b"\n")

    def _release(self) -> None:
        self._running -= 1
        if self._queue:
            self._start(self._queue.popleft(), monotonic())


class _Connection(asyncio.Protocol):
    """One client connection, one request at a time."""

    def __init__(self, server: GoldenServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._read_at = 0.0
        self._parser = httptools.HttpRequestParser(self)
        self._path = ""
        self._body = b""
        self.answer: _Answer | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=0)  # write at once

    def data_received(self, data: bytes) -> None:
        self._read_at = monotonic()
        self._loop.call_soon(self._take, data)  # requests that came at once are all stamped before any work

    def _take(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.answer is not None:
            answer, self.answer = self.answer, None
            self._server.abandon(answer)

    def on_message_begin(self) -> None:
        self._body = b""

    def on_url(self, url: bytes) -> None:
        self._path = url.decode("ascii", "replace")

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self.answer = self._server.arrive(self, self._path, self._body, self._read_at)
