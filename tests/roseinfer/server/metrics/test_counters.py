"""Times of answers, whatever their ids and however many there are."""

from __future__ import annotations

import time

import numpy as np

from roseinfer.request.params import Finished, FinishReason
from roseinfer.server.metrics.counters import Counters, Observer


def end(id: int) -> Finished:
    return Finished(id, FinishReason.LENGTH, 0.0, 0.0, 0.0)


def test_a_long_answer_does_not_share_its_times_with_a_later_one() -> None:
    counters = Counters.create(1)
    observer, later = Observer(counters), 1 << 16
    observer.submitted(0, 10, time.monotonic(), 7)
    observer.step(np.array([0]), ())
    observer.submitted(later, 10, time.monotonic(), 7)
    observer.step(np.array([0]), ())
    assert counters.waiting(7) == ((1, 10), (1, 10))
    observer.step(np.array([0, later]), [end(0), end(later)])
    assert counters.waiting(7) == ((0, 0), (0, 0))
    assert sum(counters.histogram("time_to_first_token")[0]) == 2
    assert sum(counters.histogram("inter_token_latency")[0]) == 2


def test_an_answer_that_the_front_end_ends_counts_with_its_last_token() -> None:
    counters = Counters.create(1)
    observer = Observer(counters)
    for id in (0, 1, 2):
        observer.submitted(id, 10, time.monotonic(), 7)
    observer.complete(end(0))
    observer.step(np.array([0, 1]), ())
    observer.step(np.array([0, 1]), ())  # the engine had made one more of the first
    observer.complete(end(1))
    observer.step(np.array([0, 1, 2]), [end(2)])
    assert (counters.count("requests"), counters.count("discarded")) == (3, 0)
    assert counters.waiting(7) == ((0, 0), (0, 0))
    expected = {"time_to_first_token": 3, "inter_token_latency": 2, "queue_wait": 3, "prefill": 3}
    for name, samples in (expected | {"time_per_output_token": 1}).items():
        assert sum(counters.histogram(name)[0]) == samples


def test_more_answers_at_once_than_there_is_room_for_at_first() -> None:
    counters = Counters.create(1)
    observer, ids = Observer(counters), np.arange(5000)
    for id in ids.tolist():
        observer.submitted(id, 1, time.monotonic(), 0)
    observer.discarded(0)
    observer.step(ids, [])
    observer.step(ids[1:], [end(id) for id in ids[1:].tolist()])
    assert counters.waiting(0) == ((0, 0), (0, 0))
    assert (counters.count("requests"), counters.count("discarded")) == (4999, 1)
    for name in ("time_to_first_token", "inter_token_latency", "time_per_output_token"):
        samples, total = counters.histogram(name)
        assert sum(samples) == 4999 and 0 <= total < 5000 * 60
