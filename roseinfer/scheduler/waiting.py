"""The requests that wait: first come, first served for each client, and fair between clients."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from itertools import zip_longest

from roseinfer.scheduler.request import Request


class Waiting:
    """One queue for each client. The client that has been given the fewest tokens is the next: those of its
    prompts count when they are admitted, generated ones when their request leaves (after the virtual token
    counters of Sheng et al., OSDI 2024). A client that comes begins level with the one that was served last.

    What runs is counted here, too, because a client is remembered while anything of it waits or runs.
    """

    def __init__(self) -> None:
        self._queues: dict[int, OrderedDict[int, Request]] = {}
        self._client_of: dict[int, int] = {}
        self._given: dict[int, int] = {}  # tokens, of every client that has requests here
        self._level = 0
        self.running: Counter[int] = Counter()  # requests of each client

    def __len__(self) -> int:
        return len(self._client_of)

    @property
    def num_clients(self) -> int:
        """Clients of which anything waits or runs."""
        return len(self._given)

    def __iter__(self) -> Iterator[Request]:
        """In the order of admission: the next of each client, then the second ones, …"""
        if not self._queues:
            return
        first = min(self._queues, key=self._given.__getitem__)
        if len(self._queues) == 1:
            yield from self._queues[first].values()
            return
        head = next(iter(self._queues[first].values()))
        yield head
        order = sorted(self._queues, key=self._given.__getitem__)
        for turn in zip_longest(*(self._queues[client].values() for client in order)):
            yield from (request for request in turn if request is not None and request is not head)

    def add(self, request: Request) -> None:
        """At the end of its client's queue."""
        client = request.client
        self._given.setdefault(client, self._level)
        self._queues.setdefault(client, OrderedDict())[request.id] = request
        self._client_of[request.id] = client

    def put_back(self, request: Request) -> None:
        """At the head of its client's queue: it has been running."""
        self.add(request)
        self._queues[request.client].move_to_end(request.id, last=False)

    def discard(self, request_id: int) -> bool:
        """Forget a request. False if it does not wait."""
        client = self._client_of.get(request_id)
        if client is None:
            return False
        self._take(client, request_id)
        self._forget_if_gone(client)
        return True

    def admit(self, request: Request, tokens: int) -> None:
        """`request` waits no longer, and `tokens` are computed for it."""
        client = request.client
        self._take(client, request.id)
        self._level = max(self._level, self._given[client])
        self._given[client] += tokens
        self.running[client] += 1

    def left(self, client: int, tokens: int) -> None:
        """A request of `client` runs no longer, and has got `tokens` since it was admitted."""
        self._given[client] += tokens
        self.running[client] -= 1
        if not self.running[client]:
            del self.running[client]
        self._forget_if_gone(client)

    def _take(self, client: int, request_id: int) -> None:
        del self._client_of[request_id]
        queue = self._queues[client]
        del queue[request_id]
        if not queue:
            del self._queues[client]

    def _forget_if_gone(self, client: int) -> None:
        if client not in self._queues and client not in self.running:
            del self._given[client]
