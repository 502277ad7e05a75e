"""One front end: HTTP on one side, a channel to each replica of the engine on the other.

The first front end is the server's parent process. The others are started as
`python -m roseinfer.server.process.front_end` with Arguments in JSON, get their connections over the handover
socket, API keys in the environment, and end when that socket closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import uvloop

from roseinfer.config import ConfigError
from roseinfer.model_folder import model_folder
from roseinfer.modules import keep_what_is_made, leave_signals_to_parent
from roseinfer.server.access import Access, QueueLimits, api_keys
from roseinfer.server.app import App
from roseinfer.server.child import return_freed_blocks
from roseinfer.server.config import ServerConfig
from roseinfer.server.engine_client import EngineClient, Timeouts
from roseinfer.server.http.buffers import Budget
from roseinfer.server.http.connection import Connection
from roseinfer.server.http.connections import Connections
from roseinfer.server.http.errors import EngineDeadError, HttpError
from roseinfer.server.http.response import JoinedWrites
from roseinfer.server.metrics.counters import Counters
from roseinfer.server.openai.completion import Backend
from roseinfer.server.openai.large_bodies import LargeBodies
from roseinfer.server.openai.responses import error_response
from roseinfer.server.openai.submission import Submission
from roseinfer.server.replicas import Replicas
from roseinfer.server.routing import PrefixOwners
from roseinfer.tokenizer.chat import ChatTemplate
from roseinfer.tokenizer.tokenizer import load_tokenizer
from roseinfer.tracing.spans import span

log = logging.getLogger(__name__)

#: Seconds for clients to read the errors that end their answers when the server stops.
FLUSH = 1.0
#: Seconds between checks for connections that take too long.
SWEEP = 1.0


class Settings(msgspec.Struct, frozen=True):
    """The settings of a front end. `created`: when the server was started, seconds since the epoch."""

    server: ServerConfig
    model: str
    created: int


class Shared(NamedTuple):
    """Shared memory of all front ends."""

    counters: Counters
    owners: PrefixOwners


class FrontEnd:
    """Front end `index`. Call `await start()` first. `on_death` is called with the index of an engine replica
    that ends by itself after that."""

    def __init__(
        self,
        index: int,
        settings: Settings,
        keys: Sequence[str],
        channels: Sequence[socket.socket],
        shared: Shared,
        on_death: Callable[[int], None],
    ) -> None:
        server, counters = settings.server, shared.counters
        writes, timeouts = JoinedWrites(), Timeouts(stall=server.stall_seconds)
        engines = [
            EngineClient(sock, index, counters.of(n), partial(on_death, n), timeouts, writes.joined, n)
            for n, sock in enumerate(channels)
        ]
        self.engine = Replicas(engines, counters, shared.owners)
        self._grace = server.grace_seconds
        self.hurry = asyncio.Event()  # set: no answer gets more time
        tokenizer = load_tokenizer(settings.model)
        template = ChatTemplate.load(model_folder(settings.model))
        name = server.served_model_name or settings.model
        calls_tools = server.tool_call_parser is not None
        backend = Backend(self.engine, tokenizer, name, server.stream_interval, template, calls_tools)
        self._large_bodies = LargeBodies(settings.model, tokenizer)
        access = Access(keys, server.allowed_host or (), counters.salt)
        queue = QueueLimits(counters, server.max_waiting_requests, server.max_waiting_tokens)
        submission = Submission(backend, counters, access, queue, self._large_bodies, server)
        self._app = app = App(
            backend, counters, access, queue, submission, server.profile_dir, settings.created
        )
        self._detokenizer = backend.detokenizer
        self._connections = Connections(
            app.handle,
            error_response,
            counters.count_closed,
            app.admit,
            Budget(server.max_buffered_mib << 20),
            writes=writes,
        )
        self._adopting: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Wait for the engine. Raises ConfigError or EngineDeadError when it cannot start."""
        await self.engine.start()
        return_freed_blocks()
        self._detokenizer().escaped.fill()
        span.mark_for_nsys()
        keep_what_is_made()
        self._sweep()

    def adopt(self, sock: socket.socket) -> None:
        """Serve a client's connection."""
        task = asyncio.get_running_loop().create_task(self._connect(sock))
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    def lost(self) -> None:
        """Account for a connection that could not be received."""
        log.error("a connection was dropped: this process has no descriptor left; raise `ulimit -n`")
        self._connections.on_close()

    async def _connect(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(lambda: Connection(self._connections), sock)
        except OSError:  # it has gone already
            sock.close()
            self._connections.on_close()

    def _sweep(self) -> None:
        asyncio.get_running_loop().call_later(SWEEP, self._sweep)
        self._connections.sweep()
        self.engine.watch()

    async def stop(self) -> None:
        """Give answers time to complete, then end them with an error, and close every connection."""
        self._app.stopping = True
        self._connections.stop()
        no_connection = asyncio.ensure_future(self._connections.none_left.wait())
        hurry = asyncio.ensure_future(self.hurry.wait())
        await asyncio.wait((no_connection, hurry), timeout=self._grace, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        self._connections.end_answers(HttpError(503, "the server is stopping"))
        await asyncio.wait((no_connection,), timeout=FLUSH)
        no_connection.cancel()
        for connection in list(self._connections.all):
            connection.abort()
        self._large_bodies.stop()
        self.engine.stop()


class Arguments(msgspec.Struct, frozen=True):
    """The command line of a front end's process: its index, the descriptors that it inherits, and
    settings."""

    index: int
    handover: int
    counters: int
    prefixes: int
    engines: list[int]
    settings: Settings


async def _serve(arguments: Arguments) -> None:
    settings, server, ended = arguments.settings, arguments.settings.server, asyncio.Event()
    counters = Counters(arguments.counters, server.num_front_ends, arguments.index, server.data_parallel_size)
    shared = Shared(counters, PrefixOwners(arguments.prefixes, counters.salt))
    channels = [socket.socket(fileno=engine) for engine in arguments.engines]
    handover = socket.socket(fileno=arguments.handover)
    keys = api_keys(None)
    front_end = FrontEnd(arguments.index, settings, keys, channels, shared, lambda replica: ended.set())

    def receive() -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                data, descriptors, _, _ = socket.recv_fds(handover, 1, 1)
                if not data:
                    ended.set()
                    return
                if not descriptors:  # the kernel has closed it
                    front_end.lost()
                    continue
                front_end.adopt(socket.socket(fileno=descriptors[0]))

    handover.setblocking(False)
    try:
        await front_end.start()
    except (ConfigError, EngineDeadError):
        return  # the parent gets the same error
    handover.send(b"r")
    asyncio.get_running_loop().add_reader(handover, receive)
    await ended.wait()
    asyncio.get_running_loop().remove_reader(handover)
    await front_end.stop()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    leave_signals_to_parent()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(msgspec.json.decode(sys.argv[1], type=Arguments)))
