"""Queries and orders to the engine, matched with their answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from roseinfer.server.http.errors import EngineDeadError, SilentEngineError

Question = TypeVar("Question")
Answer = TypeVar("Answer")

#: Questions that may wait for an answer.
MAX_WAITING = 1000


class Questions(Generic[Question, Answer]):
    """Questions of one kind, which are answered in order. A question that is given up keeps its place until
    its answer comes."""

    def __init__(self, send: Callable[[Question], None]) -> None:
        self._send = send
        self._waiting: deque[asyncio.Future[Answer]] = deque()

    @property
    def open(self) -> bool:
        """Whether an answer has yet to come."""
        return bool(self._waiting)

    def put(self, question: Question) -> asyncio.Future[Answer]:
        """Ask. Returns the answer's future. Raises SilentEngineError where too many questions wait."""
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
        """Answer the first question that waits."""
        first = self._waiting.popleft()
        if not first.done():
            first.set_result(answer)

    def fail(self) -> None:
        """Fail all questions: the engine has ended."""
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(EngineDeadError())


def _seen(answer: asyncio.Future[Answer]) -> None:
    """Mark an error as retrieved, so that asyncio does not log it where nothing awaits the answer."""
    if not answer.cancelled():
        answer.exception()
