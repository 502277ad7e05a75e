"""Reading of large bodies in a separate process, because decoding JSON holds the GIL.

The process is started with the first of them as `python -m roseinfer.server.openai.large_bodies FD MODEL`. It
parses one body after the other, in bounded memory. It ends with its front end, and with a body that takes
more memory: then the next body starts a new process.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import pickle
import resource
import signal
import socket
import struct
import sys
import time
from typing import BinaryIO

import psutil

from roseinfer.ipc.client_turns import ClientTurns
from roseinfer.model_folder import model_folder
from roseinfer.modules import end_with, leave_signals_to_parent
from roseinfer.server.child import Child, return_freed_blocks
from roseinfer.server.http.errors import RETRY_AFTER, BadRequestError, HttpError, InternalError
from roseinfer.server.http.parser import HttpRequest
from roseinfer.server.openai.generation import Generation, no_tokenizer, read_body, too_long
from roseinfer.tokenizer.chat import ChatTemplate
from roseinfer.tokenizer.tokenizer import Tokenizer

log = logging.getLogger(__name__)

#: Bytes above which a body is large: reading the worst one of this size takes 15 ms. Bytes, and objects in
#: it, above which a chat is large: reading the worst one with Qwen3's template takes 5 ms.
LARGE, LARGE_CHAT, MANY_OBJECTS = 256 << 10, 64 << 10, 128
#: Seconds from the arrival of a body until it is read.
TIMEOUT = 30.0
#: Bodies of one client that may wait.
MAX_WAITING = 16
#: Bytes that the process may allocate after its start, for a body and its parsed form; 4 MiB less than one
#: connection may cost, as the allocator has overhead.
ROOM = 60 << 20
#: The process's niceness (nice(2)): other work goes first.
NICE = 10
#: Header of a body: its length in bytes, whether it is a chat, the context in tokens, and the most characters
#: of a text that fits, 0 without a tokenizer. Header of an answer: its length in bytes.
_QUESTION, _ANSWER = struct.Struct("<Q?QQ"), struct.Struct("<Q")

#: Exit codes of the process when memory was not enough for a body: its own, and those of the faults that a
#: failed allocation causes.
NO_MEMORY = (3, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT)
_NAME = "the process that reads large bodies"
_TOO_MUCH = "the body takes more memory than one request may; send fewer or shorter values"


def is_large(body: bytearray, chat: bool) -> bool:
    """Return whether reading `body` may take so long that streams would have to wait."""
    if chat:
        return len(body) > LARGE_CHAT or body.count(b"{") > MANY_OBJECTS
    return len(body) > LARGE


class LargeBodies:
    """A front end's client of the process, in which its own clients take turns. `tokenizer` bounds the length
    of texts, if there is one."""

    def __init__(self, model: str, tokenizer: Tokenizer | None) -> None:
        self._model = model
        self._longest = tokenizer.longest if tokenizer else 0
        self._turns = ClientTurns[tuple[asyncio.Future[Generation], HttpRequest, bool, int]]()
        self.child: Child | None = None
        self._reading: asyncio.Task[None] | None = None

    async def read(self, request: HttpRequest, chat: bool, max_model_len: int, client: int) -> Generation:
        """Take and read the body of a request of `client`; see `read_body`. Also raises HttpError: 429 if too
        many of the client's bodies wait, 503 if it takes too long, 500 for an unexpected error."""
        if self._turns.waiting(client) >= MAX_WAITING:
            message = "too many of your large requests wait; ask again when some have been answered"
            raise HttpError(429, message, headers=RETRY_AFTER)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Generation] = loop.create_future()
        self._turns.add(client, answer, (answer, request, chat, max_model_len))
        if self._reading is None:
            self._reading = loop.create_task(self._read_all())
        try:
            async with _deadline(request):
                return await answer
        except TimeoutError:
            raise _too_late() from None
        finally:
            self._turns.discard(answer)  # a client that goes meanwhile frees its body

    async def _read_all(self) -> None:
        """Read one body after the other while any wait, to its end even if its client has gone."""
        while self._turns:
            answer, request, chat, max_model_len = self._turns.take()
            try:
                generation = await self._read(request, chat, max_model_len)
            except Exception as error:
                if not answer.done():
                    answer.set_exception(error)
            else:
                if not answer.done():
                    answer.set_result(generation)
        self._reading = None

    async def _read(self, request: HttpRequest, chat: bool, max_model_len: int) -> Generation:
        try:
            async with _deadline(request):
                if self.child is None:
                    await self._start()
                numbers = (len(request.body), chat, max_model_len, self._longest * max_model_len)
                self._writer.write(_QUESTION.pack(*numbers))
                self._writer.write(request.take_body())
                (size,) = _ANSWER.unpack(await self._reader.readexactly(_ANSWER.size))
                answer = pickle.loads(await self._reader.readexactly(size))
        except TimeoutError:
            self.stop()
            raise _too_late() from None
        except (OSError, asyncio.IncompleteReadError):
            too_much = self.child is not None and self.child.exit_code() in NO_MEMORY
            self.stop()
            if too_much:
                raise BadRequestError(_TOO_MUCH) from None
            raise HttpError(503, f"{_NAME} has ended") from None
        if isinstance(answer, BadRequestError):
            raise answer
        if answer is None:
            raise InternalError
        assert isinstance(answer, Generation)
        return answer

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        arguments = [str(theirs.fileno()), self._model]
        self.child = Child(_NAME, "roseinfer.server.openai.large_bodies", arguments, [theirs])

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        if self.child is not None:
            self.child.kill()
            self.child = None
            self._writer.transport.abort()  # without what it still holds of a body


def _deadline(request: HttpRequest) -> asyncio.Timeout:
    return asyncio.timeout(request.received + TIMEOUT - time.monotonic())


def _too_late() -> HttpError:
    return HttpError(503, f"the body was not read within {TIMEOUT:.0f} s")


def serve(questions: BinaryIO, answers: BinaryIO, template: ChatTemplate | None) -> None:
    """Answer until the other side closes. Raises MemoryError, with a body read in part or not at all."""
    while numbers := questions.read(_QUESTION.size):
        size, chat, max_model_len, characters = _QUESTION.unpack(numbers)
        answer = answer_to(questions.read(size), chat, template, max_model_len, characters)
        data = pickle.dumps(answer)
        del answer
        answers.write(_ANSWER.pack(len(data)))
        answers.write(data)
        answers.flush()
        del data


def answer_to(
    body: bytes, chat: bool, template: ChatTemplate | None, max_model_len: int, characters: int
) -> Generation | BadRequestError | None:
    """Read a body, and return its error if it has one; None for an unexpected error, which is in the log.
    `characters`: the most characters of a text that fits, 0 without a tokenizer."""
    try:
        generation = read_body(body, chat, template, max_model_len)
        if any(isinstance(prompt, str) and len(prompt) > characters for prompt in generation.prompts):
            return too_long(max_model_len) if characters else no_tokenizer()
        return generation
    except BadRequestError as error:
        return error
    except MemoryError:
        raise
    except Exception:
        log.exception("a large body")
        return None


def _bound_memory() -> None:
    """Return freed memory to the system, and limit the process to ROOM more bytes from now on. Above that,
    MemoryError is raised, or a fault ends the process: msgspec 0.22 does not check all of its allocations."""
    return_freed_blocks()
    limit = psutil.Process().memory_info().data + ROOM
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    leave_signals_to_parent()
    end = socket.socket(fileno=int(sys.argv[1]))
    end_with(end)
    template = ChatTemplate.load(model_folder(sys.argv[2]))
    os.nice(NICE)
    gc.enable()
    _bound_memory()
    try:
        serve(end.makefile("rb"), end.makefile("wb"), template)
    except OSError:
        pass
    except MemoryError:
        os._exit(NO_MEMORY[0])
