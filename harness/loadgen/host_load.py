"""A load on one machine: its client processes, started together."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import IO, Self

import msgspec
import psutil

from harness.errors import BenchError, UsageError
from harness.loadgen.client_main import WorkerPlan
from harness.loadgen.load_plan import ClientUsage, LoadPlan, LoadResult, Progress, Target
from harness.loadgen.response_file import StoredResponses
from harness.loadgen.system_limits import check_limits
from harness.paths import module_command

ProgressCallback = Callable[[Progress], None]

#: Share of the machine's memory that answers may take until they have ended.
MEMORY_SHARE = 0.25


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

    def __exit__(self, *error: object) -> None:
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
            with contextlib.suppress(BrokenPipeError):  # it has ended: `check` raises the reason
                process.stdin.write(f"{t0!r}\n".encode())
        self._listen(lambda: report and report(self.progress))
        responses = StoredResponses([process.responses.fileno() for process in self._processes])
        return LoadResult(t0, responses, [process.usage() for process in self._processes])

    def _start(self) -> None:
        check_limits(list(self._shares.values()))
        addresses = [resolve(target) for target in next(iter(self._shares.values())).target.all]
        if unknown := set(self._cpus or ()) - _usable_cpus():
            raise UsageError(
                f"this process may not run on CPU {', '.join(map(str, sorted(unknown)))}",
                f"choose among {', '.join(map(str, sorted(_usable_cpus())))}",
            )
        machine = psutil.virtual_memory().total * MEMORY_SHARE
        for position, (client, share) in enumerate(self._shares.items()):
            memory = int((share.max_memory or machine) / len(self._shares))
            share = msgspec.structs.replace(share, max_memory=memory)
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
    medians = [part.ttft_us for part in parts if part.ttft_us]
    return Progress(
        sum(part.sent for part in parts),
        sum(part.completed for part in parts),
        sum(part.failed for part in parts),
        round(median(medians)) if medians else 0,
    )


def resolve(target: Target) -> list[str]:
    """The target's addresses, resolved once so that no client resolves them while it measures.

    Raises UsageError for an unknown host.
    """
    host, port = target.peer
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(f"the host {host!r} is unknown: {error}", "check the URL") from None
    return list(dict.fromkeys(str(address[0]) for *_, address in addresses))


def _usable_cpus() -> set[int]:
    return os.sched_getaffinity(0)


_STDERR_LINES = 20
#: Where large files may be: /tmp is memory on many machines. None: there.
_LARGE_FILES = "/var/tmp" if "TMPDIR" not in os.environ and os.access("/var/tmp", os.W_OK) else None


class ClientProcess:
    """Starts one client in its own process group and reads its messages.

    Args:
        work: Its share of the load.
        folder: The folder of its plan, its result and its error output.
    """

    def __init__(self, work: WorkerPlan, folder: Path) -> None:
        self.client = work.client
        self.ready = False
        self.progress = Progress(0, 0, 0)
        self._unread = b""
        self._plan_file = folder / f"plan-{work.client}.msgpack"
        self._usage_file = folder / f"usage-{work.client}.msgpack"
        self._error_file = folder / f"stderr-{work.client}.txt"
        self._plan_file.write_bytes(msgspec.msgpack.encode(work))
        self.responses = tempfile.TemporaryFile(dir=_LARGE_FILES)  # noqa: SIM115 (`kill` closes it)
        files = (str(self._plan_file), str(self._usage_file), str(self.responses.fileno()))
        with self._error_file.open("wb") as stderr:
            self._process = subprocess.Popen(
                [*module_command("harness.loadgen.client_main"), *files],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                bufsize=0,
                start_new_session=True,
                pass_fds=[self.responses.fileno()],
            )

    @property
    def stdout(self) -> IO[bytes]:
        """Standard output of the process, to wait for."""
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def stdin(self) -> IO[bytes]:
        """Standard input of the process, which waits there for the start of the load."""
        assert self._process.stdin is not None
        return self._process.stdin

    def read(self) -> bool:
        """Read its messages; False when it has closed its output."""
        data = os.read(self.stdout.fileno(), 65536)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            if line == b"ready":
                self.ready = True
            else:
                self.progress = Progress(*(int(word) for word in line.split()))
        return bool(data)

    def check(self) -> None:
        """Wait for its end.

        Raises:
            BenchError: It failed; its last lines of error output are in the message.
        """
        code = self._process.wait()
        if code != 0:
            lines = self._error_file.read_text(errors="replace").strip().splitlines()[-_STDERR_LINES:]
            raise BenchError("\n".join([f"client process {self.client} ended with code {code}", *lines]))

    def usage(self) -> ClientUsage:
        """Read its usage, after it has ended successfully."""
        return msgspec.msgpack.decode(self._usage_file.read_bytes(), type=ClientUsage)

    def kill(self) -> None:
        """Kill its process group."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self.responses):
            if file is not None:
                file.close()
