"""The other front ends, as child processes, and the dispatch of connections to front ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Sequence

import msgspec

from roseinfer.server.access import KEYS
from roseinfer.server.child import Child
from roseinfer.server.metrics.counters import Counters
from roseinfer.server.process import front_end
from roseinfer.server.process.front_end import Arguments, Settings, Shared

log = logging.getLogger(__name__)

#: Connections that are accepted before others are served.
MAX_ACCEPTED = 8


class FrontEnds:
    """Front ends 1, 2, … as processes, each with its channels to the engines."""

    def __init__(
        self, settings: Settings, keys: Sequence[str], channels: Sequence[list[socket.socket]], shared: Shared
    ) -> None:
        environment = {**os.environ, KEYS: "\n".join(keys)} if keys else None
        self.children: list[Child] = []
        self.handovers: list[socket.socket] = []
        counters, owners = shared.counters.fd, shared.owners.fd
        for index, engines in enumerate(channels, 1):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            engine_fds = [engine.fileno() for engine in engines]
            arguments = Arguments(index, theirs.fileno(), counters, owners, engine_fds, settings)
            command = [msgspec.json.encode(arguments).decode()]
            child = Child(
                f"front end {index}", front_end.__name__, command, [theirs, *engines],
                shared=[counters, owners], environment=environment,
            )  # fmt: skip
            self.children.append(child)
            self.handovers.append(ours)

    def stop(self) -> None:
        """Ask all to end, wait until they have, and kill those that do not."""
        for handover in self.handovers:
            handover.close()
        for child in self.children:
            child.wait_or_kill()

    def ask_to_stop(self) -> None:
        """Ask each to end when its answers in flight have ended or their time is over."""
        for handover in self.handovers:
            asyncio.get_running_loop().remove_reader(handover)
            with contextlib.suppress(OSError):  # it has ended
                handover.shutdown(socket.SHUT_WR)

    async def ended(self, seconds: float) -> None:
        """Wait until all have ended that were asked to, or for `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for handover in self.handovers:
                    handover.setblocking(False)
                    with contextlib.suppress(OSError):
                        while await asyncio.get_running_loop().sock_recv(handover, 1):
                            pass

    def kill(self) -> None:
        """End all at once."""
        for child in self.children:
            child.kill()

    async def ready(self, on_death: Callable[[int], None]) -> None:
        """Wait until all take connections; `on_death` is called with the index of one that ends."""
        loop = asyncio.get_running_loop()

        def ended(index: int, handover: socket.socket) -> None:
            loop.remove_reader(handover)
            on_death(index)

        for index, handover in enumerate(self.handovers):
            handover.setblocking(False)
            if await loop.sock_recv(handover, 1):
                loop.add_reader(handover, ended, index, handover)
            else:
                on_death(index)


class Dispatcher:
    """Accepts connections and gives each to the front end that has the fewest open ones, of those that take
    it: this process always does. `retry`: seconds until accepting is retried when this process has no file
    descriptor left.
    """

    def __init__(
        self,
        listener: socket.socket,
        others: list[socket.socket],
        counters: Counters,
        adopt: Callable[[socket.socket], None],
        retry: float = 0.5,
    ) -> None:
        self._listener, self._others, self._counters, self._adopt = listener, others, counters, adopt
        self._retry = retry
        self._timer: asyncio.TimerHandle | None = None
        self._dispatched = [0] * (1 + len(others))  # connections to each front end
        listener.setblocking(False)

    def start(self) -> None:
        """Take connections from now on."""
        asyncio.get_running_loop().add_reader(self._listener, self.accept)

    def stop(self) -> None:
        """Take no more."""
        if self._timer is not None:
            self._timer.cancel()
        asyncio.get_running_loop().remove_reader(self._listener)

    def accept(self) -> None:
        for _ in range(MAX_ACCEPTED):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue
            except OSError as error:
                log.error("cannot accept connections: %s", error.strerror)
                self.stop()
                self._timer = asyncio.get_running_loop().call_later(self._retry, self.start)
                return
            self._dispatch(sock)

    def _dispatch(self, sock: socket.socket) -> None:
        closed = self._counters.closed()
        open_ones = [count - gone for count, gone in zip(self._dispatched, closed, strict=True)]
        for index in sorted(range(len(open_ones)), key=open_ones.__getitem__):
            if index == 0:
                self._adopt(sock)
            else:
                try:
                    socket.send_fds(self._others[index - 1], [b"c"], [sock.fileno()])
                except OSError:  # it is stuck or gone; its parent notices the latter
                    continue
                sock.close()
            self._dispatched[index] += 1
            return
