"""All connections of one client process: chooses the one for each request, and collects the responses."""

from __future__ import annotations

import asyncio
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from math import ceil
from time import monotonic

from harness.loadgen.connection import Connection, Watch
from harness.loadgen.load_plan import ErrorKind, LoadPlan, RawResponse
from harness.loadgen.tcp import ArrivalClock, ReadySet, TcpConnection
from harness.loadgen.tls import TlsConnection, trusting

#: A peer that closes a connection so soon after its first answer keeps none. A request that was sent on it
#: meanwhile is not counted as sent again if that was known within GONE_S, as a client may be late by more.
AT_ONCE_S, GONE_S = 0.1, 2e-3
#: Text or a token id in an event; the first chunk of a chat has neither, but its role.
_TOKEN = re.compile(
    rb'"(?:(?:text|content|reasoning_content|reasoning|arguments|delta|thinking|partial_json)": ?"[^"]'
    rb'|(?:token|output)_ids": ?\[\d)'
)


def token_times(response: RawResponse) -> Iterator[float]:
    """Yield when the chunks with tokens came, by their bytes: no event is parsed while measuring."""
    for t, data in response.segments:
        yield from (t for event in data.split(b"\n\n") if _TOKEN.search(event))


def first_token(response: RawResponse) -> float | None:
    """Return the time of the first part of a response that has a token: None if there is none."""
    for t, data in response.segments:
        if _TOKEN.search(data):
            return t
    return None


class Client:
    """Sends requests, any number at once, and passes each ended response to `on_end`.

    Kept connections are reused last in, first out. One that waited unused may be closed by the peer at the
    moment of sending: if it breaks at once, before any byte came back, the request goes once more, on a new
    one. A peer that closes connections right after their first answer gets a new one for each request.

    Args:
        addresses: The numeric addresses of each target, tried in this order until one answers.
        requests: Whole HTTP requests by request index.
        watch: Looks at responses as they come; None in a load that is measured.

    Attributes:
        unsent: Requests that were not submitted.
        free: Bytes of memory that answers may still take.
        handshake_s: How long connections take to open, lately.
    """

    def __init__(
        self,
        plan: LoadPlan,
        addresses: Sequence[Sequence[str]],
        requests: dict[int, bytes],
        on_end: Callable[[RawResponse], None],
        watch: Watch | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._targets = targets = plan.target.all
        self._addresses = [list(of_target) for of_target in addresses]
        self._tls = [trusting(target.ca_cert) if target.tls else None for target in targets]
        self._route = {request.index: request.route for request in plan.requests}
        self._requests = requests
        self._most_bytes = {request.index: request.most_bytes for request in plan.requests}
        self._timeout_s = plan.timeout_s
        self._deadline_s = plan.deadline_s
        self._on_end, self._watch = on_end, watch
        self._idle: list[deque[Connection]] = [deque() for _ in targets]
        self._keeps = [True for _ in targets]
        self._active: set[Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._spares_opening = [0 for _ in targets]
        self._ready = ReadySet(self._loop)
        self._clock = ArrivalClock()
        self.unsent = set(requests)
        self.handshake_s = 0.0
        self.free = sys.maxsize if plan.max_memory is None else plan.max_memory
        self._sweep()

    def submit(self, index: int, t_sched: float, late_s: float | None = None) -> None:
        """Send request `index` now; `t_sched` is when it should have been sent."""
        self.unsent.discard(index)
        self.send(RawResponse(index, t_sched, None, None, [], late_s=late_s))

    def send(self, response: RawResponse) -> None:
        """Send the request of `response`, on a connection that is there or on a new one."""
        idle = self._idle[self._route[response.index]]
        while idle:
            connection = idle.pop()
            if not connection.closed:
                self._send(connection, response, fresh=False)
                return
        self._open(response, self._route[response.index])

    def open_ahead(self, count: int, at_once: int = sys.maxsize) -> None:
        """Open connections until `count` are open or being opened, so that no request waits for one, but
        only `at_once` to a target."""
        for route, idle in enumerate(self._idle):
            missing = ceil(count / len(self._idle)) - len(idle) - self._spares_opening[route]
            for _ in range(min(missing, at_once)):
                self._spares_opening[route] += 1
                self._open(None, route)

    def close(self) -> None:
        """Close every connection."""
        self._sweeper.cancel()
        for connection in (*chain.from_iterable(self._idle), *self._active):
            connection.close()
        self._ready.close()

    def _send(self, connection: Connection, response: RawResponse, *, fresh: bool) -> None:
        self._active.add(connection)
        index, connection.watch = response.index, self._watch
        if response.retries:
            response.t_retry = monotonic()
        connection.send(response, self._requests[index], self._most_bytes[index], fresh=fresh)

    def reserve(self, size: int) -> bool:
        """Take memory for an answer; returns whether there was as much."""
        self.free -= size
        return self.free >= 0

    def ended(self, connection: Connection, response: RawResponse) -> None:
        """The response of a connection has ended."""
        self._active.discard(connection)
        self.free += connection.reserved
        if not self._keeps[connection.route]:
            connection.close()
        if not connection.closed:
            self._idle[connection.route].append(connection)
        self._on_end(response)

    def retry(self, connection: Connection, response: RawResponse) -> None:
        """A reused connection broke before the first byte of the response: send the request again."""
        self._active.discard(connection)
        keeps_none = connection.served == 2 and connection.rested_s < AT_ONCE_S
        self._keeps[connection.route] &= not keeps_none
        response.resent += not keeps_none or monotonic() - connection.last_event > GONE_S
        self._open(response, connection.route)

    def dropped(self, connection: Connection) -> None:
        """The peer closed a connection that was not in use."""
        if connection in (idle := self._idle[connection.route]):
            idle.remove(connection)
        if connection.served == 1 and monotonic() - connection.last_event < AT_ONCE_S:
            self._keeps[connection.route] = False

    def _open(self, response: RawResponse | None, route: int) -> None:
        task = self._loop.create_task(self._connect_for(response, route))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _connect_for(self, response: RawResponse | None, route: int) -> None:
        failure: str | None = None
        begun = monotonic()
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._connect(route)
                connection.route = route
        except TimeoutError:
            failure = f"no connection within {self._timeout_s:g} s"
        except OSError as error:
            failure = str(error)
        self.handshake_s = max(monotonic() - begun, 0.9 * self.handshake_s)
        if response is None:
            self._spares_opening[route] -= 1
            if failure is None:
                self._idle[route].appendleft(connection)
        elif failure is None:
            if response.t_sent is None:
                response.connecting_s = monotonic() - begun
            self._send(connection, response, fresh=True)
        else:
            kind: ErrorKind = "connect"
            response.error, response.detail, response.t_end = kind, failure, monotonic()
            self._on_end(response)

    async def _connect(self, route: int) -> Connection:
        addresses = self._addresses[route]
        for position, address in enumerate(addresses):
            try:
                connection = await self._connect_to(address, route)
            except OSError:
                if position == len(addresses) - 1:
                    raise
            else:
                if position:
                    addresses.insert(0, addresses.pop(position))
                return connection
        raise OSError(f"{self._targets[route].peer[0]} has no address")

    async def _connect_to(self, address: str, route: int) -> Connection:
        target, tls = self._targets[route], self._tls[route]
        if tls is None:
            return await TcpConnection.open(self, self._ready, self._clock, address, target.peer[1])
        return await TlsConnection.open(self, address, target, tls)

    def _sweep(self) -> None:
        """End the responses that take too long; correct for a clock that was set."""
        self._clock.refresh()
        now = monotonic()
        limits = self._timeout_s, self._deadline_s
        overdue = [(c, why) for c in self._active if (why := c.overdue(now, *limits)) is not None]
        for connection, why in overdue:
            connection.fail("timeout", why)
        self._sweeper = self._loop.call_later(min(1.0, *(limit / 10 for limit in limits)), self._sweep)
