"""A load on one machine: its client processes, started together."""

from __future__ import annotations

import os
import selectors
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Self

from harness.errors import UsageError
from harness.loadgen.client_main import WorkerPlan
from harness.loadgen.client_process import ClientProcess
from harness.loadgen.load_plan import LoadPlan, LoadResult, Progress, Target
from harness.loadgen.system_limits import check_limits

ProgressCallback = Callable[[Progress], None]


class HostLoad:
    """Client processes, ready to send inside the `with` and ended after it, whatever happens.

    Args:
        shares: What each client sends, by its number in the whole load.
        cpus: Cores to keep the clients on, one core each, in turn; None leaves that to the kernel.

    Raises (on entering):
        UsageError: The shares need more files or ports than there are, the host or a core is unknown.
        BenchError: A client process failed.
    """

    def __init__(self, shares: Mapping[int, LoadPlan], cpus: Sequence[int] | None = None) -> None:
        self._shares, self._cpus = shares, cpus
        self._processes: list[ClientProcess] = []
        self._folder = tempfile.TemporaryDirectory(prefix="rosebench-load-")
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def progress(self) -> Progress:
        """The sums so far."""
        return total([process.progress for process in self._processes])

    def run(self, t0: float, report: ProgressCallback | None = None) -> LoadResult:
        """Begin at `t0` of this machine's monotonic clock; return when the last response has ended.

        Args:
            report: Called at most about twice a second per client with the sums so far.

        Raises:
            BenchError: A client process failed.
        """
        for process in self._processes:
            process.start(t0)
        self._listen(lambda: report and report(self.progress))
        results = [process.result() for process in self._processes]
        responses = sorted((r for result in results for r in result.responses), key=lambda r: r.index)
        return LoadResult(t0, responses, [result.usage for result in results])

    def _start(self) -> None:
        check_limits(list(self._shares.values()))
        addresses = _resolve(next(iter(self._shares.values())).target)
        if unknown := set(self._cpus or ()) - _usable_cpus():
            raise UsageError(
                f"this process may not run on CPU {', '.join(map(str, sorted(unknown)))}",
                f"choose among {', '.join(map(str, sorted(_usable_cpus())))}",
            )
        for position, (client, share) in enumerate(self._shares.items()):
            cpu = self._cpus[position % len(self._cpus)] if self._cpus else None
            work = WorkerPlan(client, share, addresses, cpu)
            self._processes.append(ClientProcess(work, Path(self._folder.name)))
        for process in self._processes:
            self._selector.register(process.stdout, selectors.EVENT_READ, process)
        self._listen(lambda: None, until_ready=True)

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
        self._selector.close()
        self._folder.cleanup()

    def _listen(self, on_progress: Callable[[], object], until_ready: bool = False) -> None:
        """Read what the clients write until all have ended, or with `until_ready` until all are ready."""
        while self._selector.get_map() and not (
            until_ready and all(process.ready for process in self._processes)
        ):
            for key, _ in self._selector.select():
                process: ClientProcess = key.data
                if process.read():
                    on_progress()
                    continue
                self._selector.unregister(process.stdout)
                process.check()


def total(parts: Sequence[Progress]) -> Progress:
    """The sums over parts of a load, and the median of their TTFT."""
    known = [part.ttft_us for part in parts if part.ttft_us]
    return Progress(
        sum(part.sent for part in parts),
        sum(part.done for part in parts),
        sum(part.failed for part in parts),
        round(median(known)) if known else 0,
    )


def _resolve(target: Target) -> list[str]:
    """The target's addresses, resolved once so that no client resolves them while it measures."""
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(f"the host {target.host!r} is unknown: {error}", "check the URL") from None
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def _usable_cpus() -> set[int]:
    return os.sched_getaffinity(0)
