"""Turns of clients for something that one after the other gets."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class ClientTurns(Generic[T]):
    """Items that wait: first come, first served within a client, while clients take turns."""

    def __init__(self) -> None:
        self._queues: dict[int, dict[Hashable, T]] = {}  # of each client, the next one first
        self._client_of: dict[Hashable, int] = {}
        self._last = 0  # the client that had the last turn

    def __len__(self) -> int:
        return len(self._client_of)

    def waiting(self, client: int) -> int:
        """Count the items of `client`."""
        return len(self._queues.get(client, ()))

    def add(self, client: int, key: Hashable, item: T) -> None:
        """Add an item, named by `key`."""
        self._queues.setdefault(client, {})[key] = item
        self._client_of[key] = client

    def take(self) -> T:
        """Remove the next item; its client's next one comes after one of each other client, also of one that
        is new then."""
        client = next((client for client in self._queues if client != self._last), self._last)
        queue, self._last = self._queues.pop(client), client
        key = next(iter(queue))
        if len(queue) > 1:
            self._queues[client] = queue
        del self._client_of[key]
        return queue.pop(key)

    def discard(self, key: Hashable) -> T | None:
        """Remove the item named by `key` and return it; None if it does not wait."""
        client = self._client_of.pop(key, None)
        if client is None:
            return None
        queue = self._queues[client]
        if len(queue) == 1:
            del self._queues[client]
        return queue.pop(key)
