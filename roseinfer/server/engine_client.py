"""A front end's client of one engine process: submits requests, receives tokens, discards requests."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from roseinfer.config import ConfigError
from roseinfer.info import EngineInfo
from roseinfer.ipc.front_end_channel import FrontEndChannel
from roseinfer.ipc.messages import (
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
from roseinfer.server.metrics.counters import Counters
from roseinfer.server.metrics.observer import Observer
from roseinfer.server.questions import Questions
from roseinfer.server.spinner import Spinner
from roseinfer.tracing.spans import span

log = logging.getLogger(__name__)

#: Seconds for the engine to answer an order or a flush, which it does between steps; to write a profile; and
#: to report its load, after which the last known load is used.
ANSWER_TIMEOUT, WRITE_TIMEOUT, LOAD_TIMEOUT = 30.0, 600.0, 2.0
#: Seconds without a message after which an engine that has work is queried (a heartbeat).
ASK_AFTER = 1.0


class TokenReceiver(Protocol):
    """Receives the tokens of one answer, in order."""

    def begin(self, begun: Finished) -> None:
        """The request's times so far, before the push of its first token."""

    def add_logprobs(self, logprobs: TokenLogprobs) -> None:
        """The next token's logprobs, where the request asked for them."""

    def add_prompt_logprobs(self, position: int, logprobs: TokenLogprobs) -> None:
        """Logprobs of the prompt token at `position`, if the request asked for them; before all tokens."""

    def push(self, token: int, end: Finished | None) -> None:
        """The next token; `end` comes with the last."""

    def fail(self, error: HttpError) -> None:
        """There is no next token: end the answer with `error`."""


class EngineClient:
    """The client of one engine, which is one replica, over one channel. Call `await start()` first.
    `counters` are those of the replica.

    `on_death` is called when a started engine ends without having been asked to. Answers end with an error
    when it has not responded for `patience` seconds. Messages that arrive together are handled within
    `joined`.
    """

    info: EngineInfo

    def __init__(
        self,
        sock: socket.socket,
        front_end: int,
        counters: Counters,
        on_death: Callable[[], None],
        patience: float = 120.0,
        joined: AbstractContextManager[None] | None = None,
        replica: int = 0,
    ) -> None:
        self._joined, self._replica = joined or nullcontext(), replica
        self._socket, self._patience, self._heard = sock, patience, time.monotonic()
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
            lambda: FrontEndChannel[FromEngine](FromEngine, self._on_messages, self._on_close),  # type: ignore[arg-type]
            sock=self._socket,
        )
        answer = await self._ready
        if answer is None:
            raise EngineDeadError
        if isinstance(answer, Failed):
            raise ConfigError(answer.reason)
        self.info = answer.info
        self._spinner = Spinner(answer.info.spin_s)
        self.alive = True

    def stop(self) -> None:
        """Expect the channel to close from now on."""
        self.alive = False

    @property
    def silent(self) -> bool:
        """Whether the engine has work and does not respond."""
        return self._counters.silent

    def watch(self) -> None:
        """Check that the engine responds, which it does between steps. Call this about every second."""
        silence = time.monotonic() - self._heard
        if not self.alive or not self._receivers or silence < ASK_AFTER:
            return
        if not self._queries.open:
            self._queries.put(Query())
        if silence > self._patience:
            self._counters.set_silent(True)
            for receiver in list(self._receivers.values()):
                receiver.fail(SilentEngineError())

    async def load(self) -> Load:
        """The engine's current load, or the last known one where it does not answer in time. Raises
        EngineDeadError."""
        if self.silent:
            return self._load
        try:
            return await self._queries.ask(Query(), LOAD_TIMEOUT)
        except SilentEngineError:
            return self._load

    async def flush(self) -> None:
        """Empty the engine's prefix cache. Raises as `order`."""
        await self._queries.ask(Query(flush=True), ANSWER_TIMEOUT)

    async def order(self, order: Order) -> Done:
        """Send an order and wait until it is carried out. Raises EngineDeadError, and HttpError where the
        engine does not answer in time."""
        limit = WRITE_TIMEOUT if isinstance(order, StopProfile) else ANSWER_TIMEOUT
        return await self._orders.ask(order, limit)

    def _send(self, message: Query | Order) -> None:
        if not self.alive:
            raise EngineDeadError
        self._channel.send(message)

    def submit(
        self,
        prompt: NDArray[np.int32],
        params: SamplingParams,
        receiver: TokenReceiver,
        received: float,
        client: int = 0,
    ) -> int:
        """Queue a prompt `[n]` of a request of `client` that arrived at `received` (monotonic, s).

        Returns the request's id. Raises EngineDeadError, SilentEngineError.
        """
        if not self.alive:
            raise EngineDeadError
        if self.silent:
            raise SilentEngineError
        if not self._receivers:
            self._heard = time.monotonic()  # an idle engine sends nothing
        id, self._next_id = self._next_id, self._next_id + 1
        self._spinner.touch()
        self._channel.send(Submit(id, prompt.tobytes(), params, time.monotonic(), client))
        self._receivers[id] = receiver
        self._count_inflight()
        self._observer.submitted(id, len(prompt), received, client)
        return id

    def _count_inflight(self) -> None:
        self._counters.set_inflight(len(self._receivers))

    def discard(self, id: int, end: Finished | None = None) -> None:
        """Drop a request; does nothing if it has ended. `end`: its answer is complete with the token that the
        receiver just got, and counts as finished."""
        if self._receivers.pop(id, None) is not None:
            self._count_inflight()
            if end is None:
                self._observer.discarded(id)
            else:
                self._observer.complete(end)
            if self.alive:
                self._channel.send(Discard(id))

    def _on_messages(self, messages: list[FromEngine]) -> None:
        if len(messages) == 1:
            self._on_message(messages[0])
            return
        with self._joined:
            for message in messages:
                self._on_message(message)

    def _on_message(self, message: FromEngine) -> None:
        self._heard = time.monotonic()
        match message:
            case Tokens(ids, tokens, finished, begun):
                for times in begun:
                    if times.id in self._receivers:
                        self._receivers[times.id].begin(times)
                self._spinner.touch()
                receivers = np.frombuffer(ids, np.int64)
                made: list[int] = np.frombuffer(tokens, np.int64).tolist()
                with span("roseinfer.detokenize"):
                    self._push(receivers.tolist(), made, {end.id: end for end in finished})
                self._observer.step(receivers, finished)
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
        for id, logprobs in step.by_request().items():
            receiver = self._receivers.get(id)
            if receiver is not None:
                try:
                    receiver.add_logprobs(logprobs)
                except Exception:
                    _broken(receiver)

    def _push(self, ids: list[int], tokens: list[int], ends: dict[int, Finished]) -> None:
        find, ended = self._receivers.get, ends.get
        for id, token in zip(ids, tokens, strict=True):
            receiver = find(id)
            if receiver is not None:
                try:
                    receiver.push(token, ended(id))
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
