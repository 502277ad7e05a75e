"""When requests are sent: by the schedule, by how many are in flight, and after those that they need."""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from time import CLOCK_MONOTONIC, monotonic

from harness.loadgen.client import Client
from harness.loadgen.load_plan import RawResponse, WireRequest, beginnings

#: Connections are opened so many handshakes before the requests that may need them, and within these times:
#: three round trips to the other side of the world at most. Beyond those, so many are kept. An idle
#: connection is no small matter to a server that has a thread for each. Opening many at once would delay what
#: is due, and make handshakes look slow.
HANDSHAKES, LEAST_AHEAD_S, MOST_AHEAD_S, SPARE, AT_ONCE = 3, 0.02, 0.5, 2, 8
_TFD_TIMER_ABSTIME = 1


class OpenLoop:
    """Sends each request at its own time, independent of the others; only a turn of a session waits for the
    response to the previous turn.

    Times are absolute: a wake-up that comes late sends what is due and shifts nothing after it.
    """

    def __init__(self, client: Client, requests: Sequence[WireRequest], t0: float) -> None:
        self._client = client
        self._turns = Turns(client, requests)
        timed = [r for r in requests if r.think_s is None]
        self._due = sorted((t0 + (r.t_sched_s or 0.0), r.index) for r in timed)
        self._before = {r.index: r.after[0] for r in timed if r.after}
        self._followed = {*self._before.values()}
        self._over: dict[int, float] = {}
        self._waiting_for: dict[int, tuple[float, int]] = {}
        self._next = 0
        self._opened = 0
        self._alarm = Alarm(asyncio.get_running_loop(), self._wake)

    def start(self) -> None:
        """Begin; the first requests are sent at their times."""
        self._wake()

    def ended(self, response: RawResponse) -> None:
        """A response ended: send the turn that waited for it."""
        if response.index in self._followed:
            self._over[response.index] = response.t_end or monotonic()
        self._turns.follows(response)
        if waiting := self._waiting_for.pop(response.index, None):
            t_due, index = waiting
            t_sched = max(t_due, response.t_end or t_due)
            self._client.submit(index, t_sched, t_sched - t_due)

    def close(self) -> None:
        """Send nothing more."""
        self._alarm.close()
        self._turns.close()

    def _wake(self) -> None:
        due = self._due
        while self._next < len(due) and due[self._next][0] <= monotonic():
            t_sched, index = due[self._next]
            self._next += 1
            before = self._before.get(index)
            if before is None:
                self._client.submit(index, t_sched)
                self._turns.begin(index, t_sched)
            elif before in self._over:
                t_free = max(t_sched, self._over[before])
                self._client.submit(index, t_free, t_free - t_sched)
            else:
                self._waiting_for[before] = t_sched, index
        ahead_s = min(max(HANDSHAKES * self._client.handshake_s, LEAST_AHEAD_S), MOST_AHEAD_S)
        horizon = monotonic() + ahead_s
        while self._opened < len(due) and due[self._opened][0] <= horizon:
            self._opened += 1
        self._client.open_ahead(min(self._opened + SPARE, len(due)) - self._next, AT_ONCE)
        if self._next < len(due):
            wake = due[self._next][0]
            if self._opened < len(due):
                wake = min(wake, due[self._opened][0] - ahead_s)
            self._alarm.set(wake)


class ClosedLoop:
    """Keeps `concurrency` requests in flight from t0 on: the next is sent when one ends.

    A session is in flight from its first request to the end of its last answer, thinking included.
    """

    def __init__(self, client: Client, requests: Sequence[WireRequest], t0: float, concurrency: int) -> None:
        self._client = client
        self._t0 = t0
        self._concurrency = concurrency
        self._turns = Turns(client, requests)
        self._waiting = [request.index for request in beginnings(requests)][::-1]
        self._alarm = Alarm(asyncio.get_running_loop(), self._begin)

    def start(self) -> None:
        """Open the connections; the first requests are sent at t0."""
        self._client.open_ahead(min(self._concurrency, len(self._waiting)))
        self._alarm.set(self._t0)

    def ended(self, response: RawResponse) -> None:
        """A response ended: its session goes on, or the next one begins."""
        if not self._turns.follows(response):
            self._release()

    def close(self) -> None:
        """Send nothing more."""
        self._alarm.close()
        self._turns.close()

    def _begin(self) -> None:
        for _ in range(min(self._concurrency, len(self._waiting))):
            self._release()

    def _release(self) -> None:
        if self._waiting:
            index, now = self._waiting.pop(), monotonic()
            self._client.submit(index, now)
            self._turns.begin(index, now)


class Batches(ClosedLoop):
    """Sends `concurrency` requests together at t0, and the next ones when all of these have ended."""

    def __init__(self, client: Client, requests: Sequence[WireRequest], t0: float, concurrency: int) -> None:
        super().__init__(client, requests, t0, concurrency)
        self._unfinished = 0

    def ended(self, response: RawResponse) -> None:
        """A response ended: if it was the last of its batch, send the next batch."""
        self._unfinished -= 1
        # Responses that end together are not reported in the order of their ends.
        self._t0 = max(self._t0, response.t_end or monotonic())
        if not self._unfinished:
            self._begin()

    def _begin(self) -> None:
        self._unfinished = min(self._concurrency, len(self._waiting))
        for _ in range(self._unfinished):
            self._client.submit(self._waiting.pop(), self._t0)


class Turns:
    """Sends the requests of sessions that have a time to think, which are no part of a schedule: each so long
    after the last of the answers that it needs, or after the beginning of its session."""

    def __init__(self, client: Client, requests: Sequence[WireRequest]) -> None:
        self._client = client
        self._session = {r.index: r.session for r in requests if r.session is not None}
        self._unfinished = Counter(self._session.values())
        self._think_s = {r.index: r.think_s for r in requests if r.think_s is not None}
        self._needs = {r.index: set(r.after) for r in requests if r.index in self._think_s}
        self._followers: dict[int, list[int]] = defaultdict(list)
        self._beside: dict[int | None, list[int]] = defaultdict(list)
        for index, needs in self._needs.items():
            for before in needs:
                self._followers[before].append(index)
            if not needs:
                self._beside[self._session.get(index)].append(index)
        self._ready: dict[int, float] = {}
        self._live = {r.index for r in requests if r.answers}
        self._due: list[tuple[float, int]] = []
        self._alarm = Alarm(asyncio.get_running_loop(), self._wake)

    def begin(self, index: int, t: float) -> None:
        """The first request of a session was due at `t`: schedule those that need no answer either."""
        if self._beside:
            for other in self._beside.pop(self._session.get(index), ()):
                self._schedule(other, t)

    def follows(self, response: RawResponse) -> bool:
        """Schedule the requests that needed only this response, which has been read, any more.

        Returns whether its session has others that have not ended.
        """
        for index in self._followers.pop(response.index, ()):
            end = None if index in self._live else response.t_end
            self._ready[index] = max(end or monotonic(), self._ready.get(index, 0.0))
            self._needs[index].discard(response.index)
            if not self._needs[index]:
                self._schedule(index, self._ready.pop(index))
        session = self._session.get(response.index)
        if session is None:
            return False
        self._unfinished[session] -= 1
        return self._unfinished[session] > 0

    def close(self) -> None:
        """Send nothing more."""
        self._alarm.close()

    def _schedule(self, index: int, t: float) -> None:
        heapq.heappush(self._due, (t + self._think_s[index], index))
        self._wake()

    def _wake(self) -> None:
        while self._due and self._due[0][0] <= monotonic():
            t_due, index = heapq.heappop(self._due)
            self._client.submit(index, t_due, 0.0)
        if self._due:
            self._alarm.set(self._due[0][0])


class Alarm:
    """Calls `ring` on the loop at one given time of `time.monotonic()`.

    It is a timerfd in the loop's epoll set (timerfd_create(2)): waiting costs no CPU, and a time in the past
    rings at once. libuv's timers tick in whole milliseconds, the kernel's in tens of microseconds.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._spec = (ctypes.c_long * 4)()  # struct itimerspec: no interval, then seconds and nanoseconds
        self._fd = self._libc.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        loop.add_reader(self._fd, self._expired)

    def set(self, when: float) -> None:
        """Ring at `when` (seconds of `time.monotonic()`); replaces the time set before."""
        self._spec[2], self._spec[3] = divmod(max(1, round(when * 1e9)), 1_000_000_000)
        if self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, self._spec, None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def close(self) -> None:
        """Stop ringing for good."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _expired(self) -> None:
        os.read(self._fd, 8)
        self._ring()
