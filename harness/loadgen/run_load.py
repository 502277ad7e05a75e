"""Runs a load: divides it among client processes, starts them together, collects their results."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from harness.errors import UsageError
from harness.loadgen.host_load import HostLoad, ProgressCallback
from harness.loadgen.http import request_head
from harness.loadgen.load_plan import LoadPlan, LoadResult


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


def deal(plan: LoadPlan, clients: int) -> list[LoadPlan]:
    """Split a load: the j-th request that follows no other goes to client j mod n, with all that follow it.
    In a closed loop it goes to the client that holds slot j mod concurrency, so that clients with one slot
    more also get that many more requests.

    Raises:
        UsageError: There is nothing to send, nobody to send it, or a header that cannot be sent.
    """
    if not plan.requests:
        raise UsageError("there is nothing to send", "ask for at least one request")
    request_head(plan.target)
    if clients < 1:
        raise UsageError(f"{clients} client processes cannot send anything", "ask for --clients 1 or more")
    firsts = [r.index for r in plan.requests if r.after is None]
    slots = plan.concurrency if plan.concurrency is not None else len(firsts)
    count = min(clients, slots, len(firsts))
    client_of = {index: j % slots % count for j, index in enumerate(firsts)}
    for r in plan.requests:
        if r.after is not None:
            client_of[r.index] = client_of[r.after]
    return [
        msgspec.structs.replace(
            plan,
            requests=[r for r in plan.requests if client_of[r.index] == client],
            concurrency=None if plan.concurrency is None else len(range(client, slots, count)),
        )
        for client in range(count)
    ]
