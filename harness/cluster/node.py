"""Work on a node of a cluster: an engine's server, client processes, and watching both.

One of these lives on each node, in a process of its own. It ends when Ray's process there has ended, or the
driver has sent no heartbeat for too long. When it ends, for whatever reason, its client processes end by
their standard input, and the engine by its guard.
"""

from __future__ import annotations

import math
import os
import shutil
import socket
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from math import inf
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil
import pyarrow as pa

from harness.cluster.node_facts import WHOLE, NodeFacts, Part, Ready, Tokenizer, this_kernel
from harness.cluster.shared_folder import SharedFolder
from harness.cluster.this_machine import counter_of
from harness.engines.base import EngineSettings, Server
from harness.engines.placement import MIN_CORES, physical_cores, split
from harness.engines.registry import get_engine
from harness.errors import BenchError
from harness.loadgen.host_load import HostLoad
from harness.loadgen.live_answers import LiveAnswer, read_answers
from harness.loadgen.load_plan import ClientUsage, LoadPlan, LoadResult, Progress, WireRequest
from harness.models.model_folder import resolve
from harness.records.cell import Wanted, read_responses
from harness.records.stream import StreamFields
from harness.schema.machines import MachineLoad
from harness.telemetry.cell_monitor import CellMonitor, CpuTime, processes_of
from harness.telemetry.revision import source_hash

#: Bytes of an engine's log that go to the driver at a time.
LOG_BYTES = 4 << 20
#: The command to begin must arrive this long before the common moment.
LEAST_NOTICE_S = 0.02
#: From one look at whether Ray's process on this node is still there to the next.
PARENT_S = 1.0
#: A node without a heartbeat of the driver for so long ends what runs on it.
SILENT_DRIVER_S = 90.0

T = TypeVar("T")


class Node:
    """The work of one node, or of a part of it. Its methods are called by the driver, several at a time."""

    def __init__(self, address: str, part: Part = WHOLE) -> None:
        self._address = address
        if part != WHOLE:
            _stay_on([cpu for core in part.cores(physical_cores()) for cpu in core])
        self._folder = Path(tempfile.mkdtemp(prefix="rosebench-node-"))
        self._log = self._folder / "server.log"
        self._engine = ExitStack()
        self._server: Server | None = None
        self._sending = ExitStack()
        self._added: dict[int, list[WireRequest]] = {}
        self._load: HostLoad | None = None
        self._result: LoadResult | None = None
        self._monitor: CellMonitor | None = None
        _without_defaults_of_ray()
        self._last_heartbeat = math.inf
        threading.Thread(target=self._end_without_driver, name="end with the node", daemon=True).start()

    def facts(self) -> NodeFacts:
        """Describe this node."""
        at_normal_priority()
        return NodeFacts(
            name=socket.gethostname(),
            address=self._address,
            cores=len(os.sched_getaffinity(0)),
            physical_cores=len(physical_cores()),
            niceness=os.getpriority(os.PRIO_PROCESS, 0),
            source=source_hash(),
            machine=this_kernel(),
            pid=os.getpid(),
        )

    def ask(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a function on this node; returns its result."""
        return function(*arguments)

    def heartbeat(self) -> None:
        """The driver is still there. It says so again and again from the first time on."""
        self._last_heartbeat = time.monotonic()

    def clock(self) -> float:
        """This machine's monotonic clock, in seconds."""
        return time.monotonic()

    # An engine's server

    def serve(self, settings: EngineSettings, model: str, host: str) -> Ready:
        """Start a server that listens at `host`, with the model of that name as this node has it.

        Raises:
            EngineError: As `Engine.open`.
            UsageError: The model is not here, and cannot be made.
        """
        self.stop()
        at_normal_priority()
        self._log.unlink(missing_ok=True)
        folder = resolve(model)
        settings = replace(settings, model=folder.path, host=host)
        engine = get_engine(settings.engine_variant.ref.name)
        self._server = self._engine.enter_context(engine.open(settings, self._log))
        return Ready(self._server.target, self._server.served_name, self._server.record)

    def check(self) -> None:
        """Raises EngineError when the server has died."""
        if self._server is not None:
            self._server.check()

    def pids(self) -> list[int]:
        """PIDs of the engine's living processes."""
        return self._server.pids if self._server is not None else []

    def stop(self) -> None:
        """End the server, if there is one. Raises CleanupError."""
        self._server = None
        engine, self._engine = self._engine, ExitStack()
        engine.close()

    def log(self, offset: int) -> bytes:
        """Read the server's output from that byte on, as much as goes at a time."""
        if not self._log.exists():
            return b""
        with self._log.open("rb") as file:
            file.seek(offset)
            return file.read(LOG_BYTES)

    def engine_cpu_s(self) -> float:
        """CPU seconds of the engine's living processes."""
        return CpuTime().read(processes_of(self.pids()))

    # Load

    def add(self, requests: bytes, first: bool) -> None:
        """Requests that clients are to send, by the clients' numbers (msgpack); the first of a load, or
        more."""
        if first:
            self._added = {}
        for client, added in msgspec.msgpack.decode(requests, type=dict[int, list[WireRequest]]).items():
            self._added.setdefault(client, []).extend(added)

    def prepare(self, shares: bytes, shared: bool) -> None:
        """Start the client processes that send what was added, and wait until they are ready. `shares` is
        the rest of their plans, by the clients' numbers (msgpack). With `shared`, an engine has the node's
        other cores.

        Raises:
            UsageError: As `HostLoad`.
            BenchError: A client process failed.
        """
        self.end_load()
        at_normal_priority()
        dealt = {
            client: msgspec.structs.replace(share, requests=self._added.pop(client))
            for client, share in msgspec.msgpack.decode(shares, type=dict[int, LoadPlan]).items()
        }
        self._load = self._sending.enter_context(HostLoad(dealt, load_cpus(shared)))

    def run(self, t0: float) -> list[ClientUsage]:
        """Begin at `t0` of this machine's monotonic clock, and return when the last response has ended.

        Raises:
            BenchError: A client process failed, or the command came too late.
        """
        assert self._load is not None
        if time.monotonic() > t0 - LEAST_NOTICE_S:
            raise BenchError(
                "the command to begin came after the moment to begin",
                "the network or the node is too busy; try again",
            )
        self._result = self._load.run(t0)
        return self._result.usage

    def progress(self) -> Progress:
        """Progress of the load that is being sent."""
        return self._load.progress if self._load is not None else Progress(0, 0, 0)

    def part(
        self,
        requests: range,
        expected: Mapping[int, Wanted],
        tokenizer: Tokenizer | None,
        fields: StreamFields,
        host: str,
        share: SharedFolder | None = None,
    ) -> tuple[bytes, bytes] | str:
        """The tables of the responses to those of `requests` that were sent here, as Arrow streams; with a
        `share`, the name of both there.

        Raises BenchError where they cannot be shared.
        """
        assert self._result is not None
        responses, number = self._result.responses, attrgetter("index")
        first, last = (bisect_left(responses, end, key=number) for end in (requests.start, requests.stop))
        tokens_of = counter_of(tokenizer.folder) if tokenizer else None
        part = map(responses.__getitem__, range(first, last))
        answers = read_responses(part, self._result.t0, expected, tokens_of, host, fields)
        tables = packed(answers.requests), packed(answers.chunks)
        return tables if share is None else share.put(msgspec.msgpack.encode(tables))

    def texts(self, indices: Sequence[int]) -> dict[int, LiveAnswer]:
        """Return the texts of answers to these requests that came here."""
        assert self._result is not None
        return read_answers(self._result.responses, indices)

    def end_load(self) -> None:
        """End the client processes and forget what came back."""
        self._load = self._result = None
        sending, self._sending = self._sending, ExitStack()
        sending.close()

    # Watching

    def watch(self, pids: Sequence[int]) -> None:
        """Watch this machine. Processes below those PIDs are ours too."""
        self.watched()
        gpus = self._server.record.gpus if self._server is not None else None
        self._monitor = CellMonitor(engine=self.pids, gpus=gpus, ours=pids)
        self._monitor.__enter__()

    def watched(self, begin: float = -inf, end: float = inf) -> MachineLoad | None:
        """Summarize the machine since `watch`, from `begin` to `end` of its monotonic clock; None if nothing
        was watched."""
        monitor, self._monitor = self._monitor, None
        if monitor is None:
            return None
        monitor.__exit__(None, None, None)
        return monitor.summary(begin, end)

    def close(self) -> None:
        """End everything and leave nothing on the disk."""
        self.end_load()
        self.watched()
        try:
            self.stop()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _end_without_driver(self) -> None:
        """End this process when Ray's process on this node, which started it, has ended, or when the driver
        is cut off. Nothing else could end what runs here then."""
        parent = os.getppid()
        while os.getppid() == parent and time.monotonic() - self._last_heartbeat < SILENT_DRIVER_S:
            time.sleep(PARENT_S)
        shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(1)


def _stay_on(cpus: Collection[int]) -> None:
    """Keep all threads of this process, and what they start, on some CPUs."""
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cpus)


def at_normal_priority() -> None:
    """Give this thread, and what it starts, the priority of other programs; Ray takes it from its workers."""
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, min(0, os.getpriority(os.PRIO_PROCESS, 0)))


def load_cpus(shared: bool) -> tuple[int, ...] | None:
    """The CPUs of a node's clients: one of each core, or those that an engine leaves where it is `shared`.

    None: they are not pinned."""
    cores = physical_cores()
    if shared:
        return split(cores).client
    return tuple(core[0] for core in cores) if len(cores) >= MIN_CORES else None


def packed(table: pa.Table) -> bytes:
    """A table as an Arrow stream, compressed."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _without_defaults_of_ray() -> None:
    """Ray sets it for its workers; an engine is to run as if it were started by hand."""
    shell = psutil.Process().parent()
    environment = shell.environ() if shell is not None else {}
    if "OMP_NUM_THREADS" not in environment:
        os.environ.pop("OMP_NUM_THREADS", None)
