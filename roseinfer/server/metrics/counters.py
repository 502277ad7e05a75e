"""Metrics in shared memory of all front ends. Each front end writes rows of its own: one for itself, and one
for each replica of the engine. All can read all rows."""

from __future__ import annotations

import copy
import mmap
import os
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from roseinfer.request.params import Finished

#: Upper bounds (s) of the buckets of every histogram; one more takes the rest.
BOUNDS = np.array(
    [1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60]
)
#: Counters and histograms, with their help texts on `/metrics`.
COUNTS = {
    "requests": "Answers that have ended, stop strings included.",
    "discarded": "Answers given up before their end: the client went away, or it failed.",
    "prompt_tokens": "Prompt tokens submitted to the engine.",
    "generation_tokens": "Tokens generated.",
}
HISTOGRAMS = {
    "time_to_first_token": "From the arrival of a request to its first token.",
    "time_per_output_token": "Mean time of a token after the first, of each ended answer.",
    "inter_token_latency": "From one token of an answer to the next.",
    "tokenize": "From a checked request with a text to its token ids, with the wait for a thread.",
    "queue_wait": "From submission to the engine to admission.",
    "prefill": "From admission to the first token.",
}
#: Histograms of a front end's work before it chooses a replica.
OF_FRONT_ENDS = frozenset({"tokenize"})
_INFLIGHT, _CLOSED, _SILENT, _WAITING, _WAITING_TOKENS, _FIRST_COUNT = range(6)
_FIRST_HISTOGRAM = _FIRST_COUNT + len(COUNTS)
_BUCKETS = len(BOUNDS) + 1
_FIRST_CLIENT = _FIRST_HISTOGRAM + len(HISTOGRAMS) * (_BUCKETS + 1)
#: Clients are counted by a hash; those with the same hash share one client's part, as in stochastic fairness
#: queueing (McKenney 1990).
_PLACES = 1024
_WIDTH = _FIRST_CLIENT + 2 * _PLACES
_SALT = 16
#: Answers in flight for which there is room at first.
_SLOTS = 1 << 10


class Counters:
    """Shared memory with the file descriptor `fd`. Front end `index` writes to its own rows, and reads sums
    over all front ends."""

    def __init__(self, fd: int, front_ends: int, index: int, replicas: int = 1) -> None:
        self.fd, self.replicas = fd, replicas
        each = 1 + replicas
        size = front_ends * each * _WIDTH * 8
        memory = mmap.mmap(fd, size + _SALT)
        #: The same random bytes in all front ends.
        self.salt = memory[size:]
        self._table = np.frombuffer(memory, count=front_ends * each * _WIDTH).reshape(-1, _WIDTH)
        # The same memory; a memoryview reads and writes single numbers faster.
        self._all = memoryview(memory)[:size].cast("d")
        self._first_row = index * each
        self._place(self._first_row, 0, 1)
        self._column = {name: _FIRST_COUNT + index for index, name in enumerate(COUNTS)}
        for index, name in enumerate(HISTOGRAMS):
            self._column[name] = _FIRST_HISTOGRAM + index * (_BUCKETS + 1)

    def _place(self, row: int, first: int, step: int) -> None:
        """Write to `row`; read each `step`-th row from `first` on."""
        self._row, self._first = self._table[row], row * _WIDTH
        self._read = self._table[first::step]
        self._start, self._step = first * _WIDTH, step * _WIDTH

    @classmethod
    def create(cls, front_ends: int, replicas: int = 1) -> Counters:
        """Create the memory, for the first front end; the others open its descriptor."""
        size = front_ends * (1 + replicas) * _WIDTH * 8
        fd = os.memfd_create("roseinfer-counters")
        os.ftruncate(fd, size + _SALT)
        os.pwrite(fd, os.urandom(_SALT), size)
        return cls(fd, front_ends, 0, replicas)

    def of(self, replica: int) -> Counters:
        """Return the counters of one replica: written by this front end, read as sums over all."""
        view = copy.copy(self)
        view._place(self._first_row + 1 + replica, 1 + replica, 1 + self.replicas)
        return view

    @property
    def inflight(self) -> int:
        """Answers in flight, in all front ends."""
        return int(self._sum(_INFLIGHT))

    @property
    def silent(self) -> bool:
        """True if a front end waits for the engine, which has not responded for too long."""
        return self._sum(_SILENT) > 0

    def set_silent(self, silent: bool) -> None:
        self._row[_SILENT] = silent

    def waiting(self, client: int) -> tuple[tuple[float, float], tuple[float, float]]:
        """Count the answers without a first token, and the tokens of their prompts: of `client`, and of all
        clients."""
        place = _FIRST_CLIENT + 2 * (client % _PLACES)
        of_client = self._sum(place), self._sum(place + 1)
        return of_client, (self._sum(_WAITING), self._sum(_WAITING_TOKENS))

    def _sum(self, column: int) -> float:
        """Sum a column over all front ends."""
        return sum(self._all[self._start + column :: self._step])

    def load(self) -> tuple[float, float]:
        """Count the answers in flight, and the tokens of prompts that wait, in all front ends."""
        return self._sum(_INFLIGHT), self._sum(_WAITING_TOKENS)

    def closed(self) -> list[int]:
        """Return the number of connections that each front end has had and closed."""
        return [int(count) for count in self._table[:: 1 + self.replicas, _CLOSED]]

    def count(self, name: str) -> float:
        """Return a count over all front ends."""
        return float(self._read[:, self._column[name]].sum())

    def histogram(self, name: str) -> tuple[list[float], float]:
        """Return the samples in each bucket, and the sum of all samples (s), over all front ends."""
        start = self._column[name]
        *buckets, total = self._read[:, start : start + _BUCKETS + 1].sum(0).tolist()
        return buckets, total

    def add_waiting(self, client: int, answers: int, tokens: int) -> None:
        """Count `answers` more of `client` that wait, with prompts of `tokens` together; fewer if
        negative."""
        place = _FIRST_CLIENT + 2 * (client % _PLACES)
        for first in (self._first + _WAITING, self._first + place):
            self._all[first] += answers
            self._all[first + 1] += tokens

    def set_inflight(self, count: int) -> None:
        self._all[self._first + _INFLIGHT] = count

    def count_closed(self) -> None:
        self._row[_CLOSED] += 1

    def add(self, name: str, amount: int) -> None:
        """Count `amount` more."""
        self._all[self._first + self._column[name]] += amount

    def observe(self, name: str, samples: NDArray[np.float64]) -> None:
        """Add samples `[n]` (s) to a histogram."""
        start = self._column[name]
        buckets = np.bincount(np.searchsorted(BOUNDS, samples), minlength=_BUCKETS)
        self._row[start : start + _BUCKETS] += buckets
        self._row[start + _BUCKETS] += samples.sum()


class Observer:
    """Latencies of answers as this front end sees them, observed for a whole step at once."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._last = np.zeros(_SLOTS)  # monotonic (s); of a request without a token: its arrival
        self._tokens = np.zeros(_SLOTS, dtype=np.int64)
        self._slots: dict[int, int] = {}  # of each answer that has not ended
        self._free = list(range(_SLOTS))
        self._waiting: dict[int, tuple[int, int]] = {}  # client and prompt tokens of each without a token
        self._complete: list[Finished] = []  # answers that the front end has ended in this step

    def submitted(self, id: int, prompt_tokens: int, received: float, client: int) -> None:
        """Count an answer to a request of `client` that arrived at `received` (monotonic, s)."""
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
        """Observe a token of each of `ids` `[n]`, or tokens that came together, next to each other; requests
        that were discarded do not count."""
        counters = self._counters
        counters.add("generation_tokens", len(ids))
        find = self._slots.get
        open_ones = [(id, slot) for id in ids.tolist() if (slot := find(id)) is not None]
        if not open_ones:
            return
        now, slots = time.monotonic(), np.array([slot for _, slot in open_ones])
        gaps, first = now - self._last[slots], self._tokens[slots] == 0
        gaps[1:][slots[1:] == slots[:-1]] = 0
        self._last[slots] = now
        np.add.at(self._tokens, slots, 1)
        if first.any():
            counters.observe("time_to_first_token", gaps[first])
            gaps = gaps[~first]
            for index in first.nonzero()[0].tolist():
                self._waits_no_more(open_ones[index][0])
        counters.observe("inter_token_latency", gaps)
        # of tokens that came together, one may end the answer here and a later one in the engine
        ended = {end.id: end for end in (*finished, *self._complete) if end.id in self._slots}
        self._complete.clear()
        if ended:
            self._ended([*ended.values()])

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
        """Count an answer that the front end has ended at the token that the next `step` counts."""
        self._complete.append(end)

    def discarded(self, id: int) -> None:
        """Count a discarded answer."""
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
