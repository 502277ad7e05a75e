"""The server's life: the first front end, with the engine and the other front ends below it."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any

import uvloop

from roseinfer.config import ConfigError
from roseinfer.server.child import Child
from roseinfer.server.http.errors import EngineDeadError
from roseinfer.server.metrics.counters import Counters
from roseinfer.server.process.engine_process import EngineProcess
from roseinfer.server.process.front_end import FrontEnd, Settings
from roseinfer.server.process.front_ends import Dispatcher, FrontEnds
from roseinfer.server.process.listen import listen

#: Seconds for front ends to end, beyond the time that answers have.
SLACK = 3.0

log = logging.getLogger(__name__)


def serve(
    engine: EngineProcess,
    others: FrontEnds,
    listener: socket.socket,
    counters: Counters,
    settings: Settings,
    keys: Sequence[str],
) -> int:
    """Answer requests on `listener` until a signal to stop, or until a process ends that must not.

    Returns the process's exit code: 0 after a signal to stop, 1 when the engine or a front end has died.
    Raises ConfigError before serving.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(engine, others, listener, counters, settings, keys))


async def _serve(
    engine: EngineProcess,
    others: FrontEnds,
    listener: socket.socket,
    counters: Counters,
    settings: Settings,
    keys: Sequence[str],
) -> int:
    loop = asyncio.get_running_loop()
    died: asyncio.Future[tuple[str, Child] | None] = loop.create_future()
    front_end: FrontEnd | None = None

    def stop(name: str = "", child: Child | None = None) -> None:
        if not died.done():
            died.set_result(None if child is None else (name, child))
        elif child is None and front_end is not None:  # a second signal
            front_end.hurry.set()
            others.kill()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    front_end = FrontEnd(
        0, settings, keys, engine.sockets[0], counters, lambda: stop("the engine process", engine.child)
    )
    starting = asyncio.ensure_future(_start(front_end, engine, others, stop))
    either: list[asyncio.Future[Any]] = [starting, died]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    dispatcher = Dispatcher(listener, others.handovers, counters, front_end.adopt)
    if starting.done():
        await starting  # raises what went wrong
        log.info("engine: %s", front_end.engine.info.describe())
        log.info("front end: %s", settings.server.describe())
        log.info("listening on %s", listen(listener))
        dispatcher.start()
    dead = await died
    starting.cancel()
    if dead is not None:
        log.error("%s has ended (%s); stopping the server", dead[0], dead[1].how_it_ended())
    dispatcher.stop()
    listener.close()  # who connects now is refused at once
    others.ask_to_stop()
    await asyncio.gather(front_end.stop(), others.ended(settings.server.grace_seconds + SLACK))
    return 0 if dead is None else 1


async def _start(
    front_end: FrontEnd, engine: EngineProcess, others: FrontEnds, stop: Callable[[str, Child], None]
) -> None:
    """Wait until the engine and all front ends are ready. Raises ConfigError."""
    try:
        await front_end.start()
    except EngineDeadError:
        how = engine.child.how_it_ended()
        raise ConfigError(f"the engine process ended while it was starting ({how})") from None
    await others.ready(lambda index: stop(f"front end {index + 1}", others.children[index]))
