"""Plan and result of a load. Engine-neutral: bytes out, stamped bytes in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

ErrorKind = Literal["connect", "disconnected", "timeout", "protocol", "memory", "stopped"]

#: Memory that an answer may take: so much, and so much a token, which has a few hundred bytes. Where it may
#: have any number of tokens, and at most: MAX_BYTES.
BASE_BYTES, TOKEN_BYTES, MAX_BYTES = 2 << 20, 4 << 10, 64 << 20

#: For a question of a few tokens: a server may load its model at the first one.
ANSWER_S = 300.0


class WireRequest(msgspec.Struct, frozen=True, array_like=True):
    """One request: `t_sched_s` seconds after the load's start (None in a closed loop), and its HTTP body.

    It is not sent before the responses to all requests `after`, which are of its session and earlier in the
    load, have ended, well or not. With `think_s` it has no time of its own, in a closed loop too: it is sent
    so long after the last of them or, where it needs none, after its session began. One that has both a time
    and requests before it has one of these. The body has a marker for the answer to each of the requests
    `answers` (`live_answers.py`). The answer has at most `most_tokens`; None: not known. It goes to that of
    all addresses of the target at `route`, with the line `header` among its headers.
    """

    index: int
    t_sched_s: float | None
    body: bytes
    after: tuple[int, ...] = ()
    think_s: float | None = None
    answers: tuple[int, ...] = ()
    most_tokens: int | None = None
    route: int = 0
    header: str = ""
    session: int | None = None

    @property
    def most_bytes(self) -> int:
        """Bytes of memory that the answer may take."""
        if self.most_tokens is None:
            return MAX_BYTES
        return min(BASE_BYTES + TOKEN_BYTES * self.most_tokens, MAX_BYTES)


class Proxy(msgspec.Struct, frozen=True):
    """An HTTP proxy, with what it is asked for where it wants a password."""

    host: str
    port: int
    headers: dict[str, str] = {}


def beginnings(requests: Iterable[WireRequest]) -> Iterator[WireRequest]:
    """Yield the first request of each session, and every request that belongs to none."""
    begun: set[int] = set()
    for request in requests:
        if request.session is None:
            yield request
        elif request.session not in begun:
            begun.add(request.session)
            yield request


class Target(msgspec.Struct, frozen=True):
    """Address of a server, and the proxy on the way to it; `others` are more addresses of the same server.
    `ca_cert` is a PEM file of certificates to trust beside the system's. `answer_s` is how long the answer to
    a question that is not part of a load may take."""

    host: str
    port: int
    path: str
    headers: dict[str, str] = {}
    tls: bool = False
    ca_cert: str | None = None
    answer_s: float = ANSWER_S
    proxy: Proxy | None = None
    others: tuple[Target, ...] = ()

    @property
    def all(self) -> tuple[Target, ...]:
        """All addresses of the server."""
        return (self, *self.others)

    @property
    def place(self) -> str:
        """`host:port`."""
        return f"{self.host}:{self.port}"

    @property
    def peer(self) -> tuple[str, int]:
        """Host and port to connect to."""
        return (self.host, self.port) if self.proxy is None else (self.proxy.host, self.proxy.port)

    def url_of(self, path: str) -> str:
        """Return what a request line names: the whole URL where a proxy reads it, else the path."""
        return path if self.tls or self.proxy is None else f"http://{self.place}{path}"

    @property
    def sent_headers(self) -> dict[str, str]:
        """The headers of each request, with those for a proxy that reads them."""
        return self.headers if self.tls or self.proxy is None else {**self.headers, **self.proxy.headers}


class LoadPlan(msgspec.Struct, frozen=True):
    """A whole load. `concurrency` is None for an open loop, else the requests held in flight. `in_batches`:
    so many are sent together, and the next ones when all of these have ended; by each client process.

    `timeout_s` bounds the silence on one response, `deadline_s` its whole length: a server that only sends
    comments is not silent. `max_memory` are the bytes that answers may take together on one machine, until
    they have ended and are in a file; None: a quarter of the machine's memory. A request that fails in a way
    that may pass is sent up to `retries` times more. When more than `most_failed` have failed at one client
    process, it sends no more; None: it sends all.
    """

    target: Target
    requests: Sequence[WireRequest]
    concurrency: int | None = None
    timeout_s: float = 300.0
    deadline_s: float = 3600.0
    in_batches: bool = False
    max_memory: int | None = None
    retries: int = 0
    most_failed: int | None = None


class RawResponse(msgspec.Struct, array_like=True):
    """Record of one request. Times are CLOCK_MONOTONIC seconds; `segments` are reads from the socket,
    the response head included, each with the time at which it arrived. `late_s` is by how much `t_sched` is
    after the request's own time, because the response before it had not ended; None where there is none.
    `connecting_s` is how long the connection took that was opened for it, None where one was there. `resent`
    is how often it was sent again, on a new connection, and `retries` how often after an answer or a failure
    that may pass, the last time at `t_retry`; `t_sent` is of the first time."""

    index: int
    t_sched: float
    t_sent: float | None
    t_end: float | None
    segments: list[tuple[float, bytes]]
    error: ErrorKind | None = None
    detail: str = ""
    reused: bool = False
    client: int = 0
    late_s: float | None = None
    connecting_s: float | None = None
    resent: int = 0
    retries: int = 0
    t_retry: float | None = None


class ClientUsage(msgspec.Struct, array_like=True):
    """CPU time of one client process between the load's start and its end: near 1 CPU second a second, it was
    the bottleneck."""

    client: int
    cpu_s: float
    wall_s: float


class LoadResult(msgspec.Struct):
    """All responses of a load, in request order, and its start on the monotonic clock."""

    t0: float
    responses: Sequence[RawResponse]
    usage: list[ClientUsage] = []


class Progress(msgspec.Struct, array_like=True):
    """Counts so far, summed over the client processes.

    `ttft_us` is the median over the latest answers from sending to the first token, in µs, for whoever
    watches: found by its bytes, as events are not read while measuring. 0 before there is one.
    """

    sent: int
    completed: int
    failed: int
    ttft_us: int = 0
