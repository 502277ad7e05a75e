"""Questions to the engine that are no requests for tokens."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from roseinfer.server.http.errors import EngineDeadError, SilentEngineError

Question = TypeVar("Question")
Answer = TypeVar("Answer")

#: Questions that may be without an answer.
MAX_WAITING = 1000


class Questions(Generic[Question, Answer]):
    """Of one kind, which is answered in the order of asking: one given up keeps its place until its answer
    comes."""

    def __init__(self, send: Callable[[Question], None]) -> None:
        self._send = send
        self._waiting: deque[asyncio.Future[Answer]] = deque()

    @property
    def open(self) -> bool:
        """Whether an answer has yet to come."""
        return bool(self._waiting)

    def put(self, question: Question) -> asyncio.Future[Answer]:
        """Ask; who wants the answer awaits what is returned. Raises SilentEngineError where too many wait."""
        if len(self._waiting) >= MAX_WAITING:
            raise SilentEngineError
        self._send(question)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_seen)
        self._waiting.append(answer)
        return answer

    async def ask(self, question: Question, limit: float) -> Answer:
        """The answer. Raises SilentEngineError where it does not come within `limit` seconds."""
        try:
            return await asyncio.wait_for(self.put(question), limit)
        except TimeoutError:
            raise SilentEngineError from None

    def answer(self, answer: Answer) -> None:
        """The first question's."""
        first = self._waiting.popleft()
        if not first.done():
            first.set_result(answer)

    def fail(self) -> None:
        """The engine has ended."""
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(EngineDeadError())


def _seen(answer: asyncio.Future[Answer]) -> None:
    """An error is no matter for the log where nobody waits for the answer."""
    if not answer.cancelled():
        answer.exception()
