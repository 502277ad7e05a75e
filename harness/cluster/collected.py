"""What came back to the nodes that sent a load, fetched part by part."""

from __future__ import annotations

from collections.abc import Sequence
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
from harness.loadgen.load_plan import LoadPlan, Progress
from harness.records.answers import MEASURED, RECEIVED, Answers

#: Answers that come at a time.
PART = 4_000


@dataclass
class Sender:
    """A node that sends, in a load: its clients' shares, its clock before and after."""

    node: RayNode
    shares: dict[int, LoadPlan]
    before: Offset | None = None
    running: Any = None
    progress: Progress = field(default_factory=lambda: Progress(0, 0, 0))


def collected(
    t0: float, senders: Sequence[Sender], reading: Reading, name: str, share: SharedFolder | None = None
) -> Answers:
    """The answers that came to all nodes, in the order of requests: PART of them after the other, from all
    nodes at once, so that little more than what is kept of them is here at any time. They come through Ray's
    object store, or through `share`."""
    tokenizer = Tokenizer(reading.tokenizer, name) if reading.tokenizer else None
    requests: list[pa.Table] = [MEASURED.empty_table()]
    chunks: list[pa.Table] = [RECEIVED.empty_table()]
    texts: dict[int, str] = {}
    for sender in senders if reading.texts_of else ():
        texts |= sender.node.call("texts", reading.texts_of)
    last = max(
        request.index for sender in senders for share in sender.shares.values() for request in share.requests
    )
    for first in range(0, last + 1, PART):
        part = range(first, min(first + PART, last + 1))
        wanted = ray.put({index: reading.wanted[index] for index in part if index in reading.wanted})
        asked = [(s.node, s.node.begin("part", part, wanted, tokenizer, s.node.name, share)) for s in senders]
        found = [node.result(reference) for node, reference in asked]
        if share is not None:
            found = [msgspec.msgpack.decode(share.take(each), type=tuple[bytes, bytes]) for each in found]
        sent, came = (
            [pa.ipc.open_stream(data).read_all() for data in tables] for tables in zip(*found, strict=True)
        )
        requests.append(pa.concat_tables(sent).sort_by("request"))
        chunks.append(pa.concat_tables(came).sort_by([("request", "ascending"), ("t", "ascending")]))
    return Answers(t0, pa.concat_tables(requests), pa.concat_tables(chunks), texts)
