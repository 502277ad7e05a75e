"""The waiting requests: first come, first served within a client, and fair between clients."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from itertools import zip_longest

from roseinfer.scheduler.request import Request


class Waiting:
    """One queue for each client. The client that was given the fewest tokens is next: prompt tokens count
    when their request is admitted, generated ones when it leaves (after the virtual token counter of Sheng et
    al., OSDI 2024). A new client starts at the count of the client that was served last.

    Running requests are counted here, too: a client is remembered while any of its requests waits or runs.
    """

    def __init__(self) -> None:
        self._queues: dict[int, OrderedDict[int, Request]] = {}
        self._client_of: dict[int, int] = {}
        self._served: dict[int, int] = {}  # tokens, of every client that has requests here
        self._level = 0
        self.tokens = 0  # of the waiting requests
        self.running: Counter[int] = Counter()  # requests of each client

    def __len__(self) -> int:
        return len(self._client_of)

    @property
    def num_clients(self) -> int:
        """Clients with waiting or running requests."""
        return len(self._served)

    def __iter__(self) -> Iterator[Request]:
        """In the order of admission: the first request of each client, then the second ones, …"""
        if not self._queues:
            return
        first = min(self._queues, key=self._turn)
        if len(self._queues) == 1:
            yield from self._queues[first].values()
            return
        head = next(iter(self._queues[first].values()))
        yield head
        order = sorted(self._queues, key=self._turn)
        for turn in zip_longest(*(self._queues[client].values() for client in order)):
            yield from (request for request in turn if request is not None and request is not head)

    def _turn(self, client: int) -> tuple[int, int]:
        """Return what the next client has least of: tokens, then running requests."""
        return self._served[client], self.running[client]

    def add(self, request: Request) -> None:
        """Add a request at the end of its client's queue."""
        client = request.client
        self._served.setdefault(client, self._level)
        self._queues.setdefault(client, OrderedDict())[request.id] = request
        self.tokens += len(request.tokens)
        self._client_of[request.id] = client

    def put_back(self, request: Request) -> None:
        """Add a preempted request at the head of its client's queue."""
        self.add(request)
        self._queues[request.client].move_to_end(request.id, last=False)

    def discard(self, request_id: int) -> bool:
        """Drop a request. False if it is not waiting."""
        client = self._client_of.get(request_id)
        if client is None:
            return False
        self._take(client, request_id)
        self._forget_if_gone(client)
        return True

    def admit(self, request: Request, tokens: int) -> None:
        """`request` leaves the queue to run, and `tokens` prompt tokens are to be computed for it."""
        client = request.client
        self._take(client, request.id)
        self._level = max(self._level, self._served[client])
        self._served[client] += tokens
        self.running[client] += 1

    def left(self, client: int, tokens: int) -> None:
        """A request of `client` stopped running; `tokens` were generated since it was admitted."""
        self._served[client] += tokens
        self.running[client] -= 1
        if not self.running[client]:
            del self.running[client]
        self._forget_if_gone(client)

    def precedes(self, client: int, other: int, tokens: int) -> bool:
        """Return whether `client` is served before `other`, once that is given `tokens` more."""
        return self._served[client] < self._served[other] + tokens

    def is_uneven(self, many: int) -> bool:
        """Return whether a client has over `many` running requests, and another, which may only wait, has no
        more."""
        counts = self.running.values()
        return max(counts, default=0) > many and (len(counts) < len(self._served) or min(counts) <= many)

    def _take(self, client: int, request_id: int) -> None:
        del self._client_of[request_id]
        queue = self._queues[client]
        self.tokens -= len(queue.pop(request_id).tokens)
        if not queue:
            del self._queues[client]

    def _forget_if_gone(self, client: int) -> None:
        if client not in self._queues and client not in self.running:
            del self._served[client]
