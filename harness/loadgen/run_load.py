"""Runs a load: divides it among client processes, starts them together, collects their results."""

from __future__ import annotations

import os
import selectors
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import msgspec

from harness.errors import UsageError
from harness.loadgen.client_main import WorkerPlan
from harness.loadgen.client_process import ClientProcess
from harness.loadgen.http import request_head
from harness.loadgen.load_plan import LoadPlan, LoadResult, Progress, Target
from harness.loadgen.system_limits import check_limits

ProgressCallback = Callable[[Progress], None]


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
    if not plan.requests:
        raise UsageError("there is nothing to send", "ask for at least one request")
    request_head(plan.target)
    shares = _deal(plan, clients)
    check_limits(shares)
    addresses = _resolve(plan.target)
    if unknown := set(cpus or ()) - _usable_cpus():
        raise UsageError(
            f"this process may not run on CPU {', '.join(map(str, sorted(unknown)))}",
            f"choose among {', '.join(map(str, sorted(_usable_cpus())))}",
        )
    processes: list[ClientProcess] = []
    with tempfile.TemporaryDirectory(prefix="rosebench-load-") as folder:
        try:
            for client, share in enumerate(shares):
                cpu = cpus[client % len(cpus)] if cpus else None
                processes.append(ClientProcess(WorkerPlan(client, share, addresses, cpu), Path(folder)))
            with selectors.DefaultSelector() as selector:
                for process in processes:
                    selector.register(process.stdout, selectors.EVENT_READ, process)
                _listen(selector, until_ready=processes)
                t0 = time.monotonic() + start_delay_s
                for process in processes:
                    process.start(t0)
                _listen(selector, on_progress=lambda: progress and progress(_total(processes)))
            results = [process.result() for process in processes]
        finally:
            for process in processes:
                process.kill()
    responses = sorted((r for result in results for r in result.responses), key=lambda r: r.index)
    return LoadResult(t0, responses, [result.usage for result in results])


def _deal(plan: LoadPlan, clients: int) -> list[LoadPlan]:
    """Split a load: the j-th request that follows no other goes to client j mod n, with all that follow it.
    In a closed loop it goes to the client that holds slot j mod concurrency, so that clients with one slot
    more also get that many more requests."""
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


def _resolve(target: Target) -> list[str]:
    """The target's addresses, resolved once so that no client resolves them while it measures."""
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(f"the host {target.host!r} is unknown: {error}", "check the URL") from None
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def _usable_cpus() -> set[int]:
    return os.sched_getaffinity(0)


def _total(processes: Sequence[ClientProcess]) -> Progress:
    parts = [process.progress for process in processes]
    known = [p.ttft_us for p in parts if p.ttft_us]
    return Progress(
        sum(p.sent for p in parts),
        sum(p.done for p in parts),
        sum(p.failed for p in parts),
        round(median(known)) if known else 0,
    )


def _listen(
    selector: selectors.BaseSelector,
    until_ready: Sequence[ClientProcess] = (),
    on_progress: Callable[[], object] = lambda: None,
) -> None:
    """Read what the clients write until all of `until_ready` are ready or, without those, all have ended."""
    while selector.get_map() and not (until_ready and all(process.ready for process in until_ready)):
        for key, _ in selector.select():
            process: ClientProcess = key.data
            if process.read():
                on_progress()
                continue
            selector.unregister(process.stdout)
            process.check()
