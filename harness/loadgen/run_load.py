"""Runs a load: divides it among client processes, starts them together, collects their results."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from harness.errors import UsageError
from harness.loadgen.host_load import HostLoad, ProgressCallback
from harness.loadgen.http import request_head
from harness.loadgen.load_plan import LoadPlan, LoadResult, WireRequest, beginnings

#: Bodies that are dealt at a time.
PART_BYTES = 4 << 20


def run_load(
    plan: LoadPlan,
    *,
    clients: int = 1,
    cpus: Sequence[int] | None = None,
    progress: ProgressCallback | None = None,
    start_delay_s: float = 0.5,
) -> LoadResult:
    """Send every request of `plan` from `clients` processes and return what came back.

    Blocks until the last response has ended. KeyboardInterrupt, like any exception, ends the clients first.

    Args:
        clients: Processes among which the requests are dealt in turn; a closed loop's concurrency is split.
        cpus: Cores to keep the clients on, one core each, in turn; None leaves that to the kernel.
        progress: Called at most about twice a second per client with the sums so far.
        start_delay_s: From "every client is ready" to t0; connections are opened in it.

    Raises:
        UsageError: The load needs more files or ports than there are, the host or a core is unknown.
        BenchError: A client process failed.
    """
    with HostLoad(dict(enumerate(deal(plan, clients))), cpus) as load:
        return load.run(time.monotonic() + start_delay_s, progress)


class Dealing:
    """Assignment of a load's requests to clients: the j-th session, or request of none, is sent by client
    j mod n. In a closed loop it is by the client that holds slot j mod concurrency, so that clients with one
    slot more also get that many more requests.

    `count` clients have something to send.

    Raises:
        UsageError: There is nothing to send, nobody to send it, or a header that cannot be sent.
    """

    def __init__(self, plan: LoadPlan, clients: int) -> None:
        if not plan.requests:
            raise UsageError("there is nothing to send", "ask for at least one request")
        for target in plan.target.all:
            request_head(target)
        if clients < 1:
            raise UsageError(
                f"{clients} client processes cannot send anything", "ask for --clients 1 or more"
            )
        firsts = sum(1 for _ in islice(beginnings(plan.requests), clients))
        self._plan, self._slots = plan, plan.concurrency or len(plan.requests)
        self.count = min(firsts, self._slots)

    def share(self, client: int, requests: Sequence[WireRequest] = ()) -> LoadPlan:
        """A client's share of the load, with these requests."""
        slots = None if self._plan.concurrency is None else len(range(client, self._slots, self.count))
        return msgspec.structs.replace(self._plan, requests=list(requests), concurrency=slots)

    def parts(self) -> Iterator[list[list[WireRequest]]]:
        """The requests of each client, PART_BYTES of bodies at a time."""
        client_of: dict[int, int] = {}
        dealt: list[list[WireRequest]] = [[] for _ in range(self.count)]
        size = firsts = 0
        for request in self._plan.requests:
            session = request.session
            if session is None or session not in client_of:
                client = firsts % self._slots % self.count
                firsts += 1
                if session is not None:
                    client_of[session] = client
            else:
                client = client_of[session]
            dealt[client].append(request)
            size += len(request.body)
            if size > PART_BYTES:
                yield dealt
                dealt, size = [[] for _ in range(self.count)], 0
        yield dealt


def deal(plan: LoadPlan, clients: int) -> list[LoadPlan]:
    """Split a load at once. Raises UsageError as of `Dealing`."""
    dealing = Dealing(plan, clients)
    shares: list[list[WireRequest]] = [[] for _ in range(dealing.count)]
    for part in dealing.parts():
        for share, requests in zip(shares, part, strict=True):
            share += requests
    return [dealing.share(client, share) for client, share in enumerate(shares)]
