"""Large bodies become requests in a process of their own: decoding JSON keeps the interpreter from all else.

The process is started with the first of them as `python -m roseinfer.server.openai.large_bodies FD MODEL`. It
answers one body after the other and ends with its front end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import select
import signal
import socket
import sys
import threading
from typing import Any, BinaryIO

import msgspec

from roseinfer.model_folder import model_folder
from roseinfer.server.child import Child
from roseinfer.server.http.errors import BadRequestError, HttpError
from roseinfer.server.openai.generation import Generation, from_chat, from_completion
from roseinfer.server.openai.requests import ChatRequest, CompletionRequest, GenerationRequest, parse
from roseinfer.tokenizer.chat import ChatTemplate

#: Bytes above which a body is large: the worst of this size takes about 0.2 s.
LARGE = 512 << 10
#: Seconds for one body.
TIMEOUT = 30.0
_SIZE = 8

Read = tuple[GenerationRequest, Generation]


def read(body: bytearray, chat: bool, template: ChatTemplate | None, max_model_len: int) -> Read:
    """The request in `body` without its prompt, and what is generated for it. Raises BadRequestError."""
    if chat:
        conversation = parse(body, ChatRequest)
        return msgspec.structs.replace(conversation, messages=[]), from_chat(conversation, template)
    completion = parse(body, CompletionRequest)
    return msgspec.structs.replace(completion, prompt=""), from_completion(completion, max_model_len)


class LargeBodies:
    """A front end's view of the process."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._lock = asyncio.Lock()
        self._child: Child | None = None
        self._asking: set[asyncio.Task[Read]] = set()

    async def read(self, body: bytearray, chat: bool, max_model_len: int) -> Read:
        """The same as `read`. Raises also HttpError (503) when it takes too long."""
        task = asyncio.get_running_loop().create_task(self._ask(body, chat, max_model_len))
        self._asking.add(task)
        task.add_done_callback(self._asked)
        return await asyncio.shield(task)  # who leaves must not leave half an answer in the stream

    def _asked(self, task: asyncio.Task[Read]) -> None:
        self._asking.discard(task)
        if not task.cancelled():
            task.exception()  # seen, even if who asked has left

    async def _ask(self, body: bytearray, chat: bool, max_model_len: int) -> Read:
        async with self._lock:
            try:
                async with asyncio.timeout(TIMEOUT):
                    if self._child is None:
                        await self._start()
                    question = pickle.dumps((bytes(body), chat, max_model_len))
                    self._writer.write(len(question).to_bytes(_SIZE, "little") + question)
                    size = int.from_bytes(await self._reader.readexactly(_SIZE), "little")
                    answer: Read | BadRequestError = pickle.loads(await self._reader.readexactly(size))
            except (TimeoutError, OSError, asyncio.IncompleteReadError):
                self.stop()
                raise HttpError(503, f"the body was not read within {TIMEOUT:.0f} s") from None
        if isinstance(answer, BadRequestError):
            raise answer
        return answer

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self._child = Child(
            "roseinfer.server.openai.large_bodies", [str(theirs.fileno()), self._model], [theirs]
        )
        self._reader, self._writer = await asyncio.open_connection(sock=ours)

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        if self._child is not None:
            self._child.kill()
            self._child = None
            self._writer.close()


def serve(questions: BinaryIO, answers: BinaryIO, template: ChatTemplate | None) -> None:
    """Answer until the other side closes."""
    while size := questions.read(_SIZE):
        body, chat, max_model_len = pickle.loads(questions.read(int.from_bytes(size, "little")))
        answer: Any
        try:
            answer = read(body, chat, template, max_model_len)
        except BadRequestError as error:
            answer = error
        data = pickle.dumps(answer)
        answers.write(len(data).to_bytes(_SIZE, "little") + data)
        answers.flush()


def _end_with(sock: socket.socket) -> None:
    poll = select.poll()
    poll.register(sock, 0)  # a hang-up is always reported
    poll.poll()
    os._exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end = socket.socket(fileno=int(sys.argv[1]))
    threading.Thread(target=_end_with, args=(end,), daemon=True).start()
    with contextlib.suppress(OSError):
        serve(end.makefile("rb"), end.makefile("wb"), ChatTemplate.load(model_folder(sys.argv[2])))
