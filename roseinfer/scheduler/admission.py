"""The choice of the waiting request that is admitted next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from itertools import islice

from roseinfer.scheduler.request import Request


class Admission(ABC):
    """Picks one of the waiting requests, which come in queue order."""

    @abstractmethod
    def pick(self, waiting: Iterable[Request], fits: Callable[[Request], bool]) -> Request | None:
        """The request to admit, which `fits` (can be admitted now); None to admit no more in this step."""


class Fifo(Admission):
    """In order of arrival: no request passes the first in the queue."""

    def pick(self, waiting: Iterable[Request], fits: Callable[[Request], bool]) -> Request | None:
        head = next(iter(waiting), None)
        return head if head is not None and fits(head) else None


class Pack(Admission):
    """Fills a step: where the first in the queue does not fit, picks the first of the next `lookahead` that
    does.

    The request at the head of the queue is passed at most `lookahead` times, so that none starves.
    """

    def __init__(self, lookahead: int) -> None:
        self._lookahead = lookahead

    def pick(self, waiting: Iterable[Request], fits: Callable[[Request], bool]) -> Request | None:
        head, *others = islice(waiting, self._lookahead + 1)
        if fits(head):
            return head
        if head.passed < self._lookahead:
            for request in others:
                if fits(request):
                    head.passed += 1
                    return request
        return None
