"""How much memory the machine with the command needs for what came to other nodes.

    python -m benchmarks.cluster_memory --rows 10000000

This process plans a load of prompts and distributes it to clients, which get nothing of it here. A node of a
Ray cluster on this machine parses answers of `--tokens` chunks each, as after a load, and sends the tables in
parts. This process joins, stores and summarizes them, as after a cell, then makes one table of the run and
summarizes that, as after the last one. Prints the peak of its memory after each step.

    python -m benchmarks.cluster_memory --report --rows 12000000 --tokens 2

Stores a run of so many rows without a cluster, and prints what `bench report` needs to render it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import ray
from ray.cluster_utils import Cluster

from benchmarks.stored_run import stored_run
from harness.cluster.collected import Sender, collected
from harness.cluster.node import Node, packed
from harness.cluster.node_facts import Tokenizer
from harness.cluster.ray_nodes import placed
from harness.cluster.shared_folder import SharedFolder
from harness.cluster.testbed import Reading
from harness.lazy_sequence import make_sequence
from harness.loadgen.load_plan import LoadPlan, RawResponse, Target, WireRequest
from harness.loadgen.run_load import Dealing
from harness.metrics.summary import summarize
from harness.records.answers import Wanted, parse_part
from harness.records.cell import CellIdentity, Expected, cell_records
from harness.records.parquet import assemble, read_records, write_cell
from harness.schema.load import ClosedLoop
from harness.workload.content import SyntheticContent

PROMPT_TOKENS, VOCABULARY, CLIENTS = 128, 50_257, 100
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunked(event: bytes) -> bytes:
    """An event as one chunk of HTTP."""
    return b"%x\r\n%s\r\n" % (len(event), event)


TOKEN = chunked(b'data: {"choices":[{"index":0,"text":" a","token_ids":[7],"finish_reason":null}]}\n\n')
END = chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class FilledNode(Node):
    """A node to which `count` answers of `tokens` chunks have come; they are made when they are asked for."""

    def __init__(self, count: int, tokens: int) -> None:
        super().__init__("127.0.0.1")
        self._count, self._tokens = count, tokens

    def part(
        self,
        requests: range,
        wanted: Mapping[int, Wanted],
        tokenizer: Tokenizer | None,
        host: str,
        share: SharedFolder | None = None,
    ) -> tuple[bytes, bytes] | str:
        responses = [self._response(index) for index in requests if index < self._count]
        sent, chunks = (packed(table) for table in parse_part(responses, 0.0, wanted, None, host))
        return sent, chunks

    def _response(self, index: int) -> RawResponse:
        sent = 0.001 * index
        gaps = np.random.default_rng(index).lognormal(np.log(0.01), 0.3, self._tokens)
        times = (sent + np.cumsum(gaps)).tolist()
        segments = [(times[0], HEAD), *((t, TOKEN) for t in times), (times[-1], END)]
        return RawResponse(index, sent, sent, times[-1], segments)


class Remote:
    """The node's process, as `collected` asks it."""

    name = "filled"

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def begin(self, method: str, *arguments: object) -> Any:
        """Call a method; a reference to its result."""
        return getattr(self._actor, method).remote(*arguments)

    def result(self, reference: Any) -> Any:
        """What it returned."""
        return ray.get(reference)


class Peak:
    """The most memory that a process had so far, this one or another, without the pages of mapped files: the
    kernel takes those back when somebody needs memory."""

    def __init__(self, pid: int | str = "self") -> None:
        self._status = Path(f"/proc/{pid}/status")
        self._most, self._begin = 0, time.monotonic()
        threading.Thread(target=self._watch, daemon=True).start()

    def say(self, step: str) -> None:
        """Print it."""
        took = time.monotonic() - self._begin
        sys.stdout.write(f"{step:<40} {took:7.1f} s   peak {self._most / 1024:8.0f} MiB\n")
        sys.stdout.flush()

    def _watch(self) -> None:
        with suppress(OSError, IndexError):  # it has ended
            while True:
                status = self._status.read_text()
                self._most = max(self._most, int(status.partition("RssAnon:")[2].split()[0]))
                time.sleep(0.005)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of chunks.parquet")
    parser.add_argument("--tokens", type=int, default=256, help="chunks of an answer")
    parser.add_argument("--report", action="store_true", help="render a stored run of so many rows, no more")
    options = parser.parse_args()
    count, tokens = options.rows // options.tokens, options.tokens
    if options.report:
        report(count, tokens)
        return
    peak = Peak()
    cluster = Cluster()
    try:
        cluster.add_node(num_cpus=1, object_store_memory=80 << 20, include_dashboard=False)
        ray.init(cluster.address, log_to_driver=False)
        with placed([{"CPU": 1}]):
            measure(count, tokens, peak)
        ray.shutdown()
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]


def report(count: int, tokens: int) -> None:
    """Store a run and render it in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        run, page = Path(name) / "run", Path(name) / "page.html"
        stored_run(run, count, tokens)
        size = sum(path.stat().st_size for path in run.glob("*.parquet"))
        bench = subprocess.Popen([sys.executable, "-m", "harness.cli.app", "report", run, "--out", page])
        peak = Peak(bench.pid)
        if bench.wait():
            raise SystemExit("the report was not rendered")
        peak.say(f"{count:,} requests of {tokens} chunks, {size / 2**20:,.0f} MiB")


def measure(count: int, tokens: int, peak: Peak) -> None:
    """Fetch, join, store and summarize."""
    node = Remote(ray.remote(FilledNode).options(num_cpus=0).remote(count, tokens))
    planned = SyntheticContent(PROMPT_TOKENS, tokens, VOCABULARY).take(count, 0, 0)
    wire = make_sequence(
        count, lambda i: WireRequest(i, None, msgspec.json.encode(planned[i].prompt.tolist()))
    )
    for part in Dealing(LoadPlan(Target("127.0.0.1", 1, "/"), wire), CLIENTS).parts():
        msgspec.msgpack.encode(part)
    peak.say("planned, and distributed to clients")
    expected = make_sequence(count, lambda i: Expected(len(planned[i].prompt), planned[i].output_tokens))
    wanted = make_sequence(count, lambda i: expected[i].wanted(exact_length=True))
    reading = Reading(wanted, most_tokens=make_sequence(count, lambda i: expected[i].output_tokens))
    peak.say("before")
    answers = collected(0.0, [Sender(node, [0], count)], reading, "")  # type: ignore[arg-type]
    peak.say(f"{len(answers.chunks):,} rows are here")
    identity = CellIdentity(0, "mock", None, "mock", ClosedLoop(concurrency=8), 0)
    records = cell_records(answers, expected, identity)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_cell(folder, 0, records)
        size = sum(path.stat().st_size for path in folder.rglob("*.parquet"))
        peak.say(f"stored, {size / 2**20:,.0f} MiB")
        measured = summarize(records.requests, records.chunks)
        peak.say("summarized")
        del records, answers
        assemble(folder)
        peak.say("one table")
        again = read_records(folder)
        if summarize(again.requests, again.chunks) != measured:
            raise SystemExit("the stored tables give other figures")
        peak.say("summarized again")


if __name__ == "__main__":
    main()
