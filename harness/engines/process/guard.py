"""The process between the harness and an engine: whatever happens to the harness, the engine ends.

    python guard.py          stdin: one JSON line (see `Order`), then kept open until the engine must end
                             stdout: JSON lines {"pid": …} | {"error": …}, {"exit": …}, {"survivors": [pids]}

The harness has the other end of stdin. The engine is stopped when that end is closed, also when the harness
dies by any signal: there is one path for both. The guard adopts orphans (PR_SET_CHILD_SUBREAPER), so daemons
that an engine forks stay in its tree, and the engine's first process dies with the guard (PR_SET_PDEATHSIG).
Standard library and psutil only."""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
#: Seconds after SIGKILL until a process that still lives is reported.
KILL_PATIENCE_S = 10.0
#: By the guard: it ends when the harness does.
IGNORED = (signal.SIGINT, signal.SIGHUP)

#: For an engine that shares its cores with the load generator: when a request is due, the client runs at once
#: and not after the engine's time slice, which would make sends and stamps late.
SHARING_NICENESS = 10
AUTOGROUP = Path("/proc/self/autogroup")


@dataclass(frozen=True)
class Order:
    """A command to run, with only the environment `env`; its output is appended to `log`. `cpus` are the CPUs
    that it may use, None for all, at a niceness that is higher by `niceness`. `stop_signal` is sent to its
    process group to end it; SIGKILL follows after `grace_s`."""

    argv: Sequence[str]
    env: Mapping[str, str]
    log: str
    cpus: Sequence[int] | None = None
    stop_signal: int = signal.SIGINT
    grace_s: float = 10.0
    niceness: int = field(default_factory=lambda: SHARING_NICENESS)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _send(**message: Any) -> None:
    """Write a message to the harness, if it is still alive."""
    with suppress(BrokenPipeError):
        os.write(1, json.dumps(message).encode() + b"\n")


def start(order: Order, autogroup: Path = AUTOGROUP) -> subprocess.Popen[bytes]:
    """Start the engine as the leader of its own session, whose niceness the file `autogroup` takes."""

    def prepare() -> None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for ignored in IGNORED:
            signal.signal(ignored, signal.SIG_DFL)  # or the engine would inherit that it is ignored
        if order.cpus is None:
            os.nice(order.niceness)
            # The kernel divides CPU time between sessions first, then inside them. Some kernels have no such
            # groups, and users other than root may write this only once in 100 ms.
            with suppress(OSError):
                autogroup.write_text(str(order.niceness))
        else:
            os.sched_setaffinity(0, order.cpus)

    with Path(order.log).open("ab") as log:
        return subprocess.Popen(
            order.argv,
            env=order.env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=prepare,
        )


@contextmanager
def _exit_wakeup() -> Iterator[int]:
    """Yield a file descriptor that becomes readable when a child ends."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    yield read


def wait(engine: subprocess.Popen[bytes]) -> None:
    """Return when the engine has ended, stdin is closed, or SIGTERM has arrived."""
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
    with _exit_wakeup() as woken, selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while engine.poll() is None and not stop:
            for key, _ in selector.select():
                if not os.read(key.fd, 4096) and key.fd == 0:
                    return


def family(root: int) -> list[psutil.Process]:
    """Return the descendants of a process that are no zombies.

    The kernel also calls a process a zombie if only its first thread has ended; it still has all its
    resources."""
    alive = []
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(root).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1:
                    alive.append(process)
    return alive


def _reap(engine: subprocess.Popen[bytes], until: float) -> list[psutil.Process]:
    """Wait until all descendants have ended, at most until `until`. Returns the survivors."""
    while True:
        engine.poll()
        survivors = family(os.getpid())
        if not survivors or time.monotonic() >= until:
            return survivors
        psutil.wait_procs(survivors, timeout=min(0.2, max(0.0, until - time.monotonic())))


def end(engine: subprocess.Popen[bytes], order: Order) -> list[int]:
    """Ask the engine to end, then kill all descendants of this process. Returns the PIDs that survived."""
    if engine.poll() is None:
        os.killpg(engine.pid, order.stop_signal)
        _reap(engine, time.monotonic() + order.grace_s)
    until = time.monotonic() + KILL_PATIENCE_S
    while survivors := family(os.getpid()):
        for process in survivors:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if time.monotonic() >= until:
            return [process.pid for process in survivors]
        _reap(engine, time.monotonic() + 0.5)
    return []


def main() -> int:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # a thread of Ray, which starts guards, blocks some
    for ignored in IGNORED:
        signal.signal(ignored, signal.SIG_IGN)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    order = Order(**json.loads(_read_line()))
    try:
        engine = start(order)
    except (OSError, subprocess.SubprocessError) as error:
        _send(error=str(error))
        return 1
    _send(pid=engine.pid)
    wait(engine)
    if engine.poll() is not None:
        _send(exit=engine.returncode)
    survivors = end(engine, order)
    _collect()
    _send(survivors=survivors)
    return 0


def _collect() -> None:
    """Reap every adopted process: the first process of a container may not do so."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _read_line() -> bytes:
    """Return the first line of stdin."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 65536)
        if not piece:
            sys.exit(0)
        line += piece
    return line


if __name__ == "__main__":
    sys.exit(main())
