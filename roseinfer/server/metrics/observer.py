"""Latencies of requests as this front end sees them, observed for a whole step at once."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from roseinfer.request.params import Finished
from roseinfer.server.metrics.counters import Counters

#: Answers in flight for which there is room at first.
_SLOTS = 1 << 10


class Observer:
    """Keeps when each answer's last token came, and feeds the counters."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._last = np.zeros(_SLOTS)  # monotonic (s); of a request without a token: its arrival
        self._tokens = np.zeros(_SLOTS, dtype=np.int64)
        self._slots: dict[int, int] = {}  # of each answer that has not ended
        self._free = list(range(_SLOTS))
        self._waiting: dict[int, tuple[int, int]] = {}  # client and prompt tokens of each without a token
        self._complete: list[Finished] = []  # answers that the front end has ended in this step

    def submitted(self, id: int, prompt_tokens: int, received: float, client: int) -> None:
        """An answer was asked for by a request of `client` that arrived at `received`."""
        if not self._free:
            size = len(self._last)
            self._free = list(range(size, 2 * size))
            self._last, self._tokens = np.resize(self._last, 2 * size), np.resize(self._tokens, 2 * size)
        slot = self._slots[id] = self._free.pop()
        self._last[slot], self._tokens[slot] = received, 0
        self._waiting[id] = client, prompt_tokens
        self._counters.add_waiting(client, 1, prompt_tokens)
        self._counters.add("prompt_tokens", prompt_tokens)

    def step(self, ids: NDArray[np.int64], finished: Sequence[Finished]) -> None:
        """Each of `ids` got a token; requests that were discarded do not count."""
        counters = self._counters
        counters.add("generation_tokens", len(ids))
        find = self._slots.get
        known = [(id, slot) for id in ids.tolist() if (slot := find(id)) is not None]
        if not known:
            return
        now, slots = time.monotonic(), np.array([slot for _, slot in known])
        gaps, first = now - self._last[slots], self._tokens[slots] == 0
        self._last[slots] = now
        self._tokens[slots] += 1
        if first.any():
            counters.observe("time_to_first_token", gaps[first])
            gaps = gaps[~first]
            for index in first.nonzero()[0].tolist():
                self._waits_no_more(known[index][0])
        counters.observe("inter_token_latency", gaps)
        ended = [end for end in (*finished, *self._complete) if end.id in self._slots]
        self._complete.clear()
        if ended:
            self._ended(ended)

    def _ended(self, finished: Sequence[Finished]) -> None:
        counters = self._counters
        counters.add("requests", len(finished))
        counters.observe("queue_wait", np.array([end.queue_wait for end in finished]))
        counters.observe("prefill", np.array([end.prefill for end in finished]))
        slots = [self._slots.pop(end.id) for end in finished]
        self._free += slots
        later = self._tokens[slots] - 1
        generation = np.array([end.generation for end in finished])
        counters.observe("time_per_output_token", generation[later > 0] / later[later > 0])

    def complete(self, end: Finished) -> None:
        """The front end has ended an answer at the token that the next `step` counts."""
        self._complete.append(end)

    def discarded(self, id: int) -> None:
        """An answer was discarded."""
        slot = self._slots.pop(id, None)
        if slot is not None:
            self._free.append(slot)
        self._waits_no_more(id)
        self._counters.add("discarded", 1)

    def _waits_no_more(self, id: int) -> None:
        waited = self._waiting.pop(id, None)
        if waited is not None:
            client, prompt_tokens = waited
            self._counters.add_waiting(client, -1, -prompt_tokens)
