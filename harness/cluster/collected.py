"""What came back to the nodes that sent a load, fetched part by part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
import ray

from harness.cluster.clocks import Offset
from harness.cluster.node_facts import Tokenizer
from harness.cluster.ray_nodes import RayNode
from harness.cluster.shared_folder import SharedFolder
from harness.cluster.testbed import Reading
from harness.loadgen.load_plan import Progress
from harness.records.answers import MEASURED, RECEIVED, Answers

#: Answers that come at a time, and the tokens in them.
PART, PART_TOKENS = 4_000, 1 << 18


@dataclass
class Sender:
    """A node that sends, in a load: its clients, how many requests they have, its clock before."""

    node: RayNode
    clients: Sequence[int]
    requests: int = 0
    before: Offset | None = None
    running: Any = None
    progress: Progress = field(default_factory=lambda: Progress(0, 0, 0))


def collected(
    t0: float, senders: Sequence[Sender], reading: Reading, name: str, share: SharedFolder | None = None
) -> Answers:
    """The answers that came to all nodes, in the order of requests. They are fetched in parts, each from all
    nodes at once, so that few are held here. They come through Ray's object store, or through `share`."""
    tokenizer = Tokenizer(reading.tokenizer, name) if reading.tokenizer else None
    requests, chunks = [MEASURED.empty_table()], [RECEIVED.empty_table()]
    texts: dict[int, str] = {}
    for sender in senders if reading.texts_of else ():
        texts |= sender.node.call("texts", reading.texts_of)
    for part in _parts(sum(sender.requests for sender in senders), reading.most_tokens):
        wanted = ray.put({index: reading.wanted[index] for index in part})
        times = reading.response_times
        nodes = [sender.node for sender in senders]
        calls = [node.begin("part", part, wanted, tokenizer, times, node.name, share) for node in nodes]
        found = [node.result(call) for node, call in zip(nodes, calls, strict=True)]
        if share is not None:
            found = [msgspec.msgpack.decode(share.take(each), type=tuple[bytes, bytes]) for each in found]
        sent, came = (
            [pa.ipc.open_stream(data).read_all() for data in tables] for tables in zip(*found, strict=True)
        )
        requests.append(pa.concat_tables(sent).sort_by("request"))
        chunks.append(pa.concat_tables(came).sort_by([("request", "ascending"), ("t", "ascending")]))
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
