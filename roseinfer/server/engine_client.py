"""A front end's client of one engine process: submits requests, receives tokens, discards requests."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from roseinfer.config import ConfigError
from roseinfer.info import EngineInfo
from roseinfer.ipc.front_end_channel import FrontEndChannel
from roseinfer.ipc.messages import (
    MAX_CHOICES,
    OWNER_SHIFT,
    REPLICA_SHIFT,
    Discard,
    Done,
    Failed,
    FromEngine,
    Load,
    Order,
    PackedLogprobs,
    Query,
    Ready,
    Record,
    Recorded,
    StopProfile,
    Submit,
    Tokens,
)
from roseinfer.request.logprobs import StepLogprobs, TokenLogprobs
from roseinfer.request.params import Finished, SamplingParams
from roseinfer.server.http.errors import EngineDeadError, HttpError, InternalError, SilentEngineError
from roseinfer.server.metrics.counters import Counters, Observer
from roseinfer.tracing.spans import span

log = logging.getLogger(__name__)

Question = TypeVar("Question")
Answer = TypeVar("Answer")

#: Questions of one kind that may wait for an answer.
MAX_QUESTIONS = 1000


@dataclass
class Timeouts:
    """Seconds that the engine has for each kind of answer.

    Attributes:
        answer: For an order or a flush, which it carries out between steps.
        write: To write a profile.
        load: To report its load, after which the last known load is used.
        silence: Without a message, after which an engine that has work is queried (a heartbeat).
        stall: Without a message although it has work, after which answers end with an error.
    """

    answer: float = 30.0
    write: float = 600.0
    load: float = 2.0
    silence: float = 1.0
    stall: float = 120.0


class TokenReceiver(Protocol):
    """Receives the tokens of one answer, in order."""

    def begin(self, begun: Finished) -> None:
        """Take the request's times so far, before the push of its first token."""

    def add_logprobs(self, logprobs: TokenLogprobs) -> None:
        """Take the logprobs of one of the tokens that come next, in their order, if the request asked for
        them."""

    def add_prompt_logprobs(self, position: int, logprobs: TokenLogprobs) -> None:
        """Take the logprobs of the prompt token at `position`, if the request asked for them; before all
        tokens."""

    def push(self, token: int, end: Finished | None, more: bool = False) -> None:
        """Take the next token; `end` comes with the last. `more`: the step has more tokens of the answer."""

    def fail(self, error: HttpError) -> None:
        """End the answer with `error`: there is no next token."""


class EngineClient:
    """The client of one engine, which is one replica, over one channel. Call `await start()` first.

    Args:
        counters: The counters of the replica.
        on_death: Called when a started engine ends without having been asked to.
        joined: Returns a context in which messages that arrive together are handled.
    """

    info: EngineInfo

    def __init__(
        self,
        sock: socket.socket,
        front_end: int,
        counters: Counters,
        on_death: Callable[[], None],
        timeouts: Timeouts | None = None,
        joined: Callable[[], AbstractContextManager[None]] = nullcontext,
        replica: int = 0,
    ) -> None:
        self._joined, self._replica = joined, replica
        self._socket, self._timeouts = sock, timeouts or Timeouts()
        self._heard = time.monotonic()  # when the last message came
        self._load = Load(0, 0, 0.0, 0, 0, 0)  # the last that is known
        self._counters, self._observer, self._on_death = counters, Observer(counters), on_death
        self._receivers: dict[int, TokenReceiver] = {}
        self._queries = Questions[Query, Load](self._send)
        self._orders = Questions[Order, Done](self._send)
        self._next_id = front_end << OWNER_SHIFT | replica << REPLICA_SHIFT
        self.alive = False

    async def start(self) -> None:
        """Wait until the engine is ready. Raises ConfigError with the engine's reason."""
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[Ready | Failed | None] = loop.create_future()
        _, self._channel = await loop.create_unix_connection(
            lambda: FrontEndChannel(self._on_messages, self._on_close), sock=self._socket
        )
        answer = await self._ready
        if answer is None:
            raise EngineDeadError
        if isinstance(answer, Failed):
            raise ConfigError(answer.reason)
        self.info = answer.info
        self.spinner = Spinner(answer.info.spin_s)
        self.alive = True

    def stop(self) -> None:
        """Expect the channel to close from now on."""
        self.alive = False

    @property
    def silent(self) -> bool:
        """True if the engine has work and does not respond."""
        return self._counters.silent

    def watch(self) -> None:
        """Check that the engine responds, which it does between steps. Call this about every second."""
        silence = time.monotonic() - self._heard
        if not self.alive or not self._receivers or silence < self._timeouts.silence:
            return
        if not self._queries.open:
            self._queries.put(Query())
        if silence > self._timeouts.stall:
            self._counters.set_silent(True)
            for receiver in list(self._receivers.values()):
                receiver.fail(SilentEngineError())

    async def load(self) -> Load:
        """Return the engine's current load, or the last known one if it does not answer in time. Raises
        EngineDeadError."""
        if self.silent:
            return self._load
        try:
            return await self._queries.ask(Query(), self._timeouts.load)
        except SilentEngineError:
            return self._load

    async def flush(self) -> None:
        """Empty the engine's prefix cache. Raises as `order`."""
        await self._queries.ask(Query(flush=True), self._timeouts.answer)

    async def order(self, order: Order) -> Done:
        """Send an order and wait until it is carried out. Raises EngineDeadError, and HttpError if the
        engine does not answer in time."""
        writes = isinstance(order, StopProfile)
        return await self._orders.ask(order, self._timeouts.write if writes else self._timeouts.answer)

    def _send(self, message: Query | Order) -> None:
        if not self.alive:
            raise EngineDeadError
        self._channel.send(message)

    def submit(
        self,
        prompt: NDArray[np.int32],
        params: SamplingParams,
        receivers: Sequence[TokenReceiver],
        received: float,
        client: int = 0,
        salt: bytes = b"",
    ) -> Sequence[int]:
        """Queue a prompt `[n]` of a request of `client` that arrived at `received` (monotonic, s), with a
        choice for each of `receivers`, at most MAX_CHOICES.

        Returns the choices' ids. Raises EngineDeadError, SilentEngineError.
        """
        if not self.alive:
            raise EngineDeadError
        if self.silent:
            raise SilentEngineError
        if not self._receivers:
            self._heard = time.monotonic()  # an idle engine sends nothing
            self.spinner.touch()
        first, choices = self._next_id, len(receivers)
        self._next_id += MAX_CHOICES
        ids = range(first, first + choices)
        now = time.monotonic()
        self._channel.submit(Submit(first, prompt.tobytes(), params, now, client, choices, salt))
        self._receivers.update(zip(ids, receivers, strict=True))
        self._count_inflight()
        for id in ids:
            self._observer.submitted(id, len(prompt), received, client)
        return ids

    def _count_inflight(self) -> None:
        self._counters.set_inflight(len(self._receivers))

    def discard(self, id: int, end: Finished | None = None) -> None:
        """Drop a request; does nothing if it has ended. `end`: its answer is complete with the token that the
        receiver just got, and counts as finished. A submission that is not sent yet is dropped as a whole."""
        if id not in self._receivers:
            return
        submission = self._channel.withdraw(id - id % MAX_CHOICES)
        for dropped in (
            (id,) if submission is None else range(submission.id, submission.id + submission.choices)
        ):
            del self._receivers[dropped]
            if end is None:
                self._observer.discarded(dropped)
            else:
                self._observer.complete(end)
        self._count_inflight()
        if submission is None and self.alive:
            self._channel.send(Discard(id))

    def _on_messages(self, messages: list[FromEngine]) -> None:
        if len(messages) == 1:
            self._on_message(messages[0])
            return
        with self._joined():
            for message in messages:
                self._on_message(message)

    def _on_message(self, message: FromEngine) -> None:
        self._heard = time.monotonic()
        match message:
            case Tokens(ids, tokens, finished, begun):
                for times in begun:
                    if times.id in self._receivers:
                        self._receivers[times.id].begin(times)
                receivers = np.frombuffer(ids, np.int64)
                with span("roseinfer.detokenize"):
                    ends = {end.id: end for end in finished}
                    self._push(receivers.tolist(), np.frombuffer(tokens, np.int64).tolist(), ends)
                self._observer.step(receivers, finished)
                if self._receivers:  # the next tokens come before the core sleeps deeply
                    self.spinner.rest()
                else:
                    self.spinner.touch()
            case PackedLogprobs(positions=None):
                self._add_logprobs(message.logprobs)
            case PackedLogprobs():
                for id, position, logprobs in message.logprobs.of_prompts():
                    if id in self._receivers:
                        self._receivers[id].add_prompt_logprobs(position, logprobs)
            case Load():
                self._load = message
                self._counters.set_silent(False)
                self._queries.answer(message)
            case Done():
                self._orders.answer(message)
            case Record(end):
                if end:
                    self._channel.send(Recorded(os.getpid(), span.take(self._replica)))
                else:
                    span.record(self._replica)
            case Ready() | Failed():
                if not self._ready.done():
                    self._ready.set_result(message)

    def _add_logprobs(self, step: StepLogprobs) -> None:
        for id, logprobs in step.of_requests():
            receiver = self._receivers.get(id)
            if receiver is not None:
                try:
                    receiver.add_logprobs(logprobs)
                except Exception:
                    _broken(receiver)

    def _push(self, ids: list[int], tokens: list[int], ends: dict[int, Finished]) -> None:
        find, ended = self._receivers.get, ends.get
        for id, token, next_id in zip(ids, tokens, [*ids[1:], None], strict=False):
            receiver = find(id)
            if receiver is not None:
                try:
                    more = next_id == id
                    receiver.push(token, None if more else ended(id), more)
                except Exception:
                    _broken(receiver)
        if ends:
            for id in ends:
                self._receivers.pop(id, None)
            self._count_inflight()

    def _on_close(self) -> None:
        if not self._ready.done():
            self._ready.set_result(None)
        was_alive, self.alive = self.alive, False
        for receiver in list(self._receivers.values()):
            receiver.fail(EngineDeadError())
        self._queries.fail()
        self._orders.fail()
        if was_alive:
            self._on_death()


def _broken(receiver: TokenReceiver) -> None:
    """End the one answer whose receiver has raised."""
    log.exception("an answer failed")
    receiver.fail(InternalError())


class Questions(Generic[Question, Answer]):
    """Questions of one kind, which are answered in order. A question that is given up keeps its place until
    its answer comes."""

    def __init__(self, send: Callable[[Question], None]) -> None:
        self._send = send
        self._waiting: deque[asyncio.Future[Answer]] = deque()

    @property
    def open(self) -> bool:
        """True if an answer has yet to come."""
        return bool(self._waiting)

    def put(self, question: Question) -> asyncio.Future[Answer]:
        """Send a question and return its answer's future. Raises SilentEngineError if too many wait."""
        if len(self._waiting) >= MAX_QUESTIONS:
            raise SilentEngineError
        self._send(question)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        # An error that nothing awaits is retrieved here, so that asyncio does not log it.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._waiting.append(answer)
        return answer

    async def ask(self, question: Question, limit: float) -> Answer:
        """Return the answer. Raises SilentEngineError if it does not come within `limit` seconds."""
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


class Spinner:
    """Keeps an event loop polling instead of sleeping for `seconds` after a `touch`, or until it may `rest`.

    A core that sleeps takes 0.1 ms and more to wake up, several times on a request's way. 0 seconds: never.
    `clock`: monotonic time (s).
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._loop = asyncio.get_running_loop()
        self._touched = False
        self.awake = False
        self._end = 0.0

    def touch(self) -> None:
        """Busy-wait from now on: a message is likely to come, and nothing else."""
        self._touched = self._seconds > 0
        if self._touched and not self.awake:
            self.awake = True
            self._spin()

    def rest(self) -> None:
        """Sleep where there is nothing to do."""
        self._touched, self._end = False, 0.0

    def _spin(self) -> None:
        now = self._clock()
        if self._touched:
            self._touched, self._end = False, now + self._seconds
        self.awake = now < self._end
        if self.awake:
            self._loop.call_soon(self._spin)
