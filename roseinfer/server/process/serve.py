"""The server's parent process: the first front end, and parent of engines and other front ends."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Sequence
from typing import Any

from roseinfer.config import ConfigError
from roseinfer.server.child import Child
from roseinfer.server.http.errors import EngineDeadError
from roseinfer.server.process.front_end import FrontEnd, Settings, Shared
from roseinfer.server.process.front_ends import Dispatcher, FrontEnds
from roseinfer.server.process.launch import EngineProcess, address_error

#: Seconds for front ends to end, in addition to the time that answers have.
SLACK = 3.0
#: Seconds between checks for the process that ended first.
POLL = 0.01
#: Connections that may wait to be accepted.
BACKLOG = 4096

log = logging.getLogger(__name__)


async def serve(
    engines: Sequence[EngineProcess],
    others: FrontEnds,
    listener: socket.socket,
    shared: Shared,
    settings: Settings,
    keys: Sequence[str],
) -> int:
    """Answer requests on `listener` until a signal to stop, or until a process ends that must not.

    Returns the process's exit code: 0 after a signal to stop, 1 when an engine or a front end has died.
    Raises ConfigError before serving.
    """
    loop = asyncio.get_running_loop()
    died: asyncio.Future[Child | None] = loop.create_future()
    front_end: FrontEnd | None = None

    def stop(child: Child | None = None) -> None:
        if not died.done():
            died.set_result(child)
        elif child is None and front_end is not None:  # a second signal
            front_end.hurry.set()
            others.kill()

    async def start(front_end: FrontEnd) -> None:
        """Wait until all engines and front ends are ready. Raises ConfigError."""
        try:
            await front_end.start()
        except EngineDeadError:
            child = engines[front_end.engine.failed].child
            raise ConfigError(f"{child.name} ended while it was starting ({child.how_it_ended()})") from None
        await others.ready(lambda index: stop(others.children[index]))

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    channels = [engine.sockets[0] for engine in engines]
    front_end = FrontEnd(0, settings, keys, channels, shared, lambda replica: stop(engines[replica].child))
    starting = asyncio.ensure_future(start(front_end))
    either: list[asyncio.Future[Any]] = [starting, died]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    dispatcher = Dispatcher(listener, others.handovers, shared.counters, front_end.adopt)
    started = starting.done()
    if started:
        await starting  # raises what went wrong
        log.info("engine: %s", front_end.engine.info.describe())
        log.info("front end: %s", settings.server.describe())
        log.info("listening on %s", _listen(listener))
        dispatcher.start()
    dead = await died
    starting.cancel()
    if dead is not None:
        first = await _first(dead, engines)
        log.error("%s has ended (%s); stopping the server", first.name, first.how_it_ended())
    dispatcher.stop()
    listener.close()  # who connects now is refused at once
    if not started:  # they have no clients, and take no notice of being asked while they wait for the engine
        others.kill()
    others.ask_to_stop()
    await asyncio.gather(front_end.stop(), others.ended(settings.server.grace_seconds + SLACK))
    return 0 if dead is None else 1


async def _first(dead: Child, engines: Sequence[EngineProcess]) -> Child:
    """Return the process that ended first: a front end exits with 0 when an engine has ended, and may be
    noticed before that engine."""
    end = asyncio.get_running_loop().time() + SLACK
    while dead.code in (None, 0) and asyncio.get_running_loop().time() < end:
        for engine in engines:
            if engine.child.code is not None:
                return engine.child
        await asyncio.sleep(POLL)
    return dead


def _listen(sock: socket.socket) -> str:
    """Let clients connect. Returns the URL. Raises ConfigError if another process was first."""
    host, port = sock.getsockname()[:2]
    try:
        sock.listen(BACKLOG)
    except OSError as error:
        raise address_error(host, port, error) from None
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
