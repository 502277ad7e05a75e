"""Limits of the operating system, checked before the load begins: open files and local ports."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from harness.errors import UsageError
from harness.loadgen.load_plan import LoadPlan, WireRequest

#: Files that a client process has open besides its connections, with a margin.
_OWN_FILES = 64
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def most_in_flight(requests: Sequence[WireRequest], concurrency: int | None, window_s: float) -> int:
    """Connections that a load may need at once.

    In a closed loop its concurrency; in an open loop the most requests due within `window_s`, the longest
    time that a server may leave a request without an answer. Requests that follow each other never need two;
    those with a time to think may come at any time.
    """
    continued: set[int] = set()
    chains: Counter[int | None] = Counter()
    for request in requests:  # each continues the chain of one that it follows, or begins one
        follows = next((before for before in request.after if before not in continued), None)
        if follows is None:
            chains[request.session] += 1
        else:
            continued.add(follows)
    sessions = chains.total()
    if concurrency is not None:
        widest = max((count for session, count in chains.items() if session is not None), default=1)
        return min(concurrency * widest, sessions)
    if any(request.think_s is not None for request in requests):
        return sessions
    due = sorted(request.t_sched_s or 0.0 for request in requests)
    first = most = 0
    for last, t in enumerate(due):
        while due[first] < t - window_s:
            first += 1
        most = max(most, last - first + 1)
    return min(most, sessions)


def raise_open_files() -> int:
    """Raise the soft limit of open files to the hard one; returns it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def check_limits(shares: Sequence[LoadPlan]) -> None:
    """Check that a load does not run out of files or ports.

    Raises:
        UsageError: There are too few; the hint says how to raise the limit.
    """
    needs = [most_in_flight(share.requests, share.concurrency, share.timeout_s) for share in shares]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = max(needs) + _OWN_FILES
    if hard != resource.RLIM_INFINITY and need > hard:
        raise UsageError(
            f"a client process may need {need} open files and is allowed {hard}",
            f"raise the limit with `ulimit -n {need}`, spread the load with --clients, or give a lower "
            "--timeout-s: so long a request may take",
        )
    if _PORT_RANGE.exists():
        low, high = (int(word) for word in _PORT_RANGE.read_text().split())
        ports = high - low + 1
        if sum(needs) > ports:
            raise UsageError(
                f"the load may need {sum(needs)} connections at once and there are {ports} local ports",
                'widen the range with `sysctl -w net.ipv4.ip_local_port_range="1024 65535"`, '
                "or give a lower --timeout-s: so long a request may take",
            )


#: sched_setattr(2) by machine: there is no libc wrapper.
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_SLICE_NS = 100_000
_KEEP_POLICY = 0x08


class _SchedAttr(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    ]


def ask_for_short_slices() -> None:
    """Ask for time slices of 0.1 ms instead of about 3 ms, with the policy and the nice value as they are.

    What is due or has arrived then meets an earlier deadline than a busy engine's (EEVDF, Linux 6.12 and
    later). It needs no privilege; a kernel that does not know it ignores or refuses it, and nothing changes.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None:
        return
    attributes = _SchedAttr(
        size=ctypes.sizeof(_SchedAttr),
        flags=_KEEP_POLICY,
        nice=os.getpriority(os.PRIO_PROCESS, 0),
        runtime=_SLICE_NS,
    )
    ctypes.CDLL(None).syscall(ctypes.c_long(number), 0, ctypes.byref(attributes), 0)
