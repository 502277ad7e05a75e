"""An engine on one node of a cluster, and clients on others that send one load together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import ray

from harness.cluster.node_facts import Tokenizer
from harness.cluster.ray_nodes import SILENCE_S, RayNode, RemoteServer
from harness.cluster.shared_folder import SharedFolder
from harness.cluster.testbed import Reading, SentLoad, Testbed, Watch
from harness.engines.base import Engine, EngineSettings, Server
from harness.errors import LostNodeError
from harness.loadgen.host_load import ProgressCallback, total
from harness.loadgen.live_answers import LiveAnswer
from harness.loadgen.load_plan import ClientUsage, LoadPlan, Progress
from harness.loadgen.run_load import Dealing
from harness.records.cell import MEASURED, RECEIVED, Answers
from harness.schema.machines import HostCell, HostClock, MachineLoad
from harness.telemetry.gpu import Idle, idle

#: From one look at the progress of a load to the next.
LOOK_S = 0.5
#: Questions of a reading: enough that some pass without waiting, few enough that no clock drifts meanwhile.
ROUNDS = 20
#: Clocks that are disciplined by NTP differ in speed by at most this (`adjtimex`: 500 ppm each).
MOST_DRIFT = 1e-3


class RayTestbed(Testbed):
    """One side of a cluster.

    Args:
        engine: Where the engine runs; None: measured servers run already.
        senders: The nodes that send; of one node, that of the engine.
    """

    def __init__(self, engine: RayNode | None, senders: Sequence[RayNode]) -> None:
        self._engine, self._senders = engine, list(senders)
        self.node = None if engine is None else engine.name
        #: Names by which every node finds or makes the model's folder, and the tokenizer's.
        self.model, self.tokenizer = "", ""
        #: Where an engine listens; empty: at its node's address.
        self.host = ""
        #: Through what tables come; None: through Ray's object store.
        self.share: SharedFolder | None = None

    @property
    def nodes(self) -> list[RayNode]:
        """All nodes, each once."""
        return list(dict.fromkeys([*([self._engine] if self._engine else []), *self._senders]))

    @contextmanager
    def serve(self, engine: Engine, settings: EngineSettings, log: Path) -> Iterator[Server]:
        self._revive()
        if self._engine is None:
            with engine.open(settings, log) as server:
                yield server
            return
        self.node = self._engine.name
        server = RemoteServer(self._engine, log)
        try:
            server.start(settings, self.model, self.host or self._engine.facts.address)
            yield server
        finally:
            server.stop()

    def send(
        self,
        plan: LoadPlan,
        reading: Reading,
        clients: int,
        progress: ProgressCallback | None,
        start_delay_s: float,
    ) -> SentLoad:
        dealing, hosts = Dealing(plan, clients), len(self._senders)
        senders = [
            Sender(node, range(position, dealing.count, hosts))
            for position, node in enumerate(self._senders[: dealing.count])
        ]
        try:
            self._deal(dealing, senders)
            return self._send(senders, reading, progress, start_delay_s)
        finally:
            for sender in senders:
                sender.node.begin("end_load")

    @contextmanager
    def watch(self, server: Server) -> Iterator[Watch]:
        watch = Watch()
        loads: dict[str, MachineLoad] = {}
        pids = [(node.facts.machine, node.facts.pid) for node in self.nodes]
        for node in self.nodes:
            ours = [pid for machine, pid in pids if machine == node.facts.machine]
            node.call("watch", ours, timeout_s=SILENCE_S)
        try:
            yield watch
        finally:
            for node in self.nodes:
                with suppress(LostNodeError):  # a lost node has no load
                    ahead = read_offset(node.clock).seconds
                    load = node.call("watched", watch.begin + ahead, watch.end + ahead, timeout_s=SILENCE_S)
                    if load is not None:
                        loads[node.name] = load
            watch.nodes = loads
            watch.engine = watch.nodes.get(self.node or "") or next(iter(watch.nodes.values()), None)

    def abandon(self) -> None:
        for node in self.nodes:
            node.abandon()

    def engine_cpu_s(self, server: Server) -> float:
        seconds: float = self._engine.call("engine_cpu_s", timeout_s=SILENCE_S) if self._engine else 0.0
        return seconds

    def idle(self, gpus: int | None) -> Idle:
        self._revive()
        state: Idle = self._engine.call("ask", partial(idle, gpus=gpus)) if self._engine else Idle()
        return state

    def _revive(self) -> None:
        """Have every node's process running. Raises LostNodeError."""
        for node in self.nodes:
            node.revive()

    def _deal(self, dealing: Dealing, senders: Sequence[Sender]) -> None:
        """Have the clients of every node ready to send their shares of a load."""
        for number, part in enumerate(dealing.parts()):
            adding = []
            for sender in senders:
                dealt = {client: part[client] for client in sender.clients}
                sender.requests += sum(map(len, dealt.values()))
                encoded = msgspec.msgpack.encode(dealt)
                adding.append((sender.node, sender.node.begin("add", encoded, number == 0)))
            for node, reference in adding:
                node.result(reference)
        shared, preparing = self._engine in self._senders, []
        for sender in senders:
            encoded = msgspec.msgpack.encode({client: dealing.share(client) for client in sender.clients})
            preparing.append((sender.node, sender.node.begin("prepare", encoded, shared)))
        for node, reference in preparing:
            node.result(reference)

    def _send(
        self,
        senders: Sequence[Sender],
        reading: Reading,
        progress: ProgressCallback | None,
        start_delay_s: float,
    ) -> SentLoad:
        before = [read_offset(sender.node.clock) for sender in senders]
        t0 = time.monotonic() + start_delay_s + 4 * max(offset.round_trip for offset in before)
        for sender, offset in zip(senders, before, strict=True):
            sender.running = sender.node.begin("run", t0 + offset.seconds)
        usage = self._wait(senders, progress)
        clocks = [
            host_clock(offset, read_offset(sender.node.clock), t0)
            for sender, offset in zip(senders, before, strict=True)
        ]
        answers = collected(t0, senders, reading, self.tokenizer, self.share)
        hosts = [
            HostCell(name=s.node.name, clients=list(s.clients), requests=s.requests, clock=clock)
            for s, clock in zip(senders, clocks, strict=True)
        ]
        return SentLoad(answers, sorted(usage, key=lambda spent: spent.client), hosts)

    def _wait(self, senders: Sequence[Sender], report: ProgressCallback | None) -> list[ClientUsage]:
        """Until every node has sent its part. Raises BenchError when one fails or is silent for SILENCE_S."""
        usage: list[ClientUsage] = []
        running = {sender.running: sender for sender in senders}
        questions: dict[Any, tuple[RayNode, Sender | None]] = {}
        answered = {node.name: time.monotonic() for node in self.nodes}
        while running:
            waiting = {node.name for node, _ in questions.values()}
            questions |= {
                s.node.begin("progress"): (s.node, s) for s in running.values() if s.node.name not in waiting
            }
            # Where the engine's machine is gone, a client notices it only when its requests time out.
            if self._engine is not None and self._engine.name not in waiting:
                questions[self._engine.begin("clock")] = self._engine, None
            look = time.monotonic() + LOOK_S
            while running and (rest := look - time.monotonic()) > 0:
                ready, _ = ray.wait(list(running), num_returns=1, timeout=rest)
                for reference in ready:
                    usage += running.pop(reference).node.result(reference)
            for reference in (
                ray.wait(list(questions), num_returns=len(questions), timeout=0)[0] if questions else []
            ):
                node, sender = questions.pop(reference)
                answer = node.result(reference)
                answered[node.name] = time.monotonic()
                if sender is not None:
                    sender.progress = answer
            for name in {node.name for node, _ in questions.values()}:
                if time.monotonic() - answered[name] > SILENCE_S:
                    raise LostNodeError(
                        f"node {name} did not answer for {SILENCE_S:g} s in a cell",
                        "see `ray status` and the network to that node; nothing of the cell is counted",
                    )
            if report is not None:
                report(total([sender.progress for sender in senders]))
        return usage


#: Answers that come at a time, and the tokens in them.
PART, PART_TOKENS = 4_000, 1 << 18


@dataclass
class Sender:
    """A node that sends, in a load: its clients, and how many requests they have."""

    node: RayNode
    clients: Sequence[int]
    requests: int = 0
    running: Any = None
    progress: Progress = field(default_factory=lambda: Progress(0, 0, 0))


def collected(
    t0: float, senders: Sequence[Sender], reading: Reading, name: str, share: SharedFolder | None = None
) -> Answers:
    """The answers that came to all nodes, in the order of requests. They are fetched in parts, each from all
    nodes at once, so that few are held here. They come through Ray's object store, or through `share`."""
    tokenizer = Tokenizer(reading.tokenizer, name) if reading.tokenizer else None
    requests, chunks = [MEASURED.empty_table()], [RECEIVED.empty_table()]
    texts: dict[int, LiveAnswer] = {}
    for sender in senders if reading.texts_of else ():
        texts |= sender.node.call("texts", reading.texts_of)
    for part in _parts(sum(sender.requests for sender in senders), reading.most_tokens):
        expected = ray.put({index: reading.expected[index] for index in part})
        nodes = [sender.node for sender in senders]
        calls = [
            node.begin("part", part, expected, tokenizer, reading.fields, node.name, share) for node in nodes
        ]
        replies = [node.result(call) for node, call in zip(nodes, calls, strict=True)]
        if share is not None:
            replies = [msgspec.msgpack.decode(share.take(name), type=tuple[bytes, bytes]) for name in replies]
        sent, chunk_tables = (
            [pa.ipc.open_stream(data).read_all() for data in tables] for tables in zip(*replies, strict=True)
        )
        requests.append(pa.concat_tables(sent).sort_by("request"))
        chunks.append(pa.concat_tables(chunk_tables).sort_by([("request", "ascending"), ("t", "ascending")]))
    return Answers(t0, pa.concat_tables(requests), pa.concat_tables(chunks), texts)


def _parts(count: int, most_tokens: Mapping[int, int] | Sequence[int]) -> Iterator[range]:
    """All requests in order, in parts of at most PART requests and PART_TOKENS tokens, but of one request at
    least."""
    first, tokens = 0, 0
    for index in range(count):
        most = most_tokens[index] if most_tokens else 1
        tokens += most
        if index > first and (tokens > PART_TOKENS or index - first == PART):
            yield range(first, index)
            first, tokens = index, most
    yield range(first, count)


@dataclass(frozen=True)
class Offset:
    """The other clock is `seconds` ahead of ours, give or take `bound`, at `at` by our clock."""

    at: float
    seconds: float
    bound: float
    round_trip: float


def read_offset(ask: Callable[[], float]) -> Offset:
    """Ask another machine for its time again and again; return the offset of its clock with a bound.

    A question that was sent at `sent_at` and answered at `answered` by our clock, with `remote_time` by the
    other's, says that the other's clock is between `remote_time - answered` and `remote_time - sent_at` ahead
    of ours: whatever the network did, the answer was given in between (Cristian, "Probabilistic clock
    synchronization", 1989). Several questions narrow that to the intersection, of which the quickest round
    trips decide most (NTP, RFC 5905).
    """
    answers = []
    for _ in range(ROUNDS):
        sent_at = time.monotonic()
        remote_time = ask()
        answers.append((sent_at, remote_time, time.monotonic()))
    return offset_of(answers)


def offset_of(answers: Iterable[tuple[float, float, float]]) -> Offset:
    """Offset from `(sent_at, remote_time, answered)`: by our clock, by the other's, by ours.

    Between an answer and the last of them a clock may have drifted by MOST_DRIFT; the bound has that too.
    """
    answers = list(answers)
    end = answers[-1][2]
    low = max(remote_time - answered - MOST_DRIFT * (end - answered) for _, remote_time, answered in answers)
    high = min(remote_time - sent_at + MOST_DRIFT * (end - sent_at) for sent_at, remote_time, _ in answers)
    quickest = min(answered - sent_at for sent_at, _, answered in answers)
    return Offset(end, (low + high) / 2, (high - low) / 2, quickest)


def host_clock(before: Offset, after: Offset, t0: float) -> HostClock:
    """Derive offset and drift of a node's clock from readings around a cell that was to begin at `t0` of
    ours."""
    seconds = after.at - before.at
    drift, bound = (after.seconds - before.seconds) / seconds, (after.bound + before.bound) / seconds
    until_start = max(0.0, t0 - before.at)
    return HostClock(
        offset_s=before.seconds,
        bound_ms=1e3 * before.bound,
        round_trip_ms=1e3 * min(before.round_trip, after.round_trip),
        drift_ppm=1e6 * drift,
        drift_bound_ppm=1e6 * bound,
        start_bound_ms=1e3 * (before.bound + until_start * min(abs(drift) + bound, MOST_DRIFT)),
    )
