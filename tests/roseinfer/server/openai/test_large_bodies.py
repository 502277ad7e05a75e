"""Large bodies, as the process that reads them gets them, and what they cost other clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from roseinfer.server.http.errors import BadRequestError, HttpError, InternalError
from roseinfer.server.http.parser import HttpRequest
from roseinfer.server.openai import large_bodies
from roseinfer.server.openai.generation import Generation
from roseinfer.server.openai.large_bodies import MAX_WAITING, ROOM, LargeBodies, answer_to, is_large
from roseinfer.tokenizer.chat import ChatTemplate
from tests.roseinfer.server.clients import connect, in_loop, wait_for


@pytest.mark.parametrize("field", ["metadata", "tools", "response_format"])
def test_fields_that_change_nothing_do_not_travel(field: str) -> None:
    """A parser takes values that are nested more deeply than pickle does."""
    nested = b"[" * 900 + b"]" * 900
    value = b'{"type": "text", "x": %s}' % nested if field == "response_format" else nested
    body = (
        b'{"messages": [{"role": "user", "content": "a"}], "stream": true, "tool_choice": "none", "%s": %s}'
    )
    template = ChatTemplate("{{ messages[0].content }}", {})
    generation = answer_to(body % (field.encode(), value), True, template, 64, 64)
    assert pickle.loads(pickle.dumps(generation)).prompts == ("a",) and generation.stream is not None


@pytest.mark.parametrize(("characters", "says"), [(0, "the model has no tokenizer"), (3, "maximum context")])
def test_a_text_that_cannot_become_a_prompt(characters: int, says: str) -> None:
    error = answer_to(b'{"prompt": "long"}', False, None, 64, characters)
    assert isinstance(error, BadRequestError) and says in str(error)


@contextlib.contextmanager
def reader(folder: Path) -> Iterator[LargeBodies]:
    bodies = LargeBodies(str(folder), None)
    try:
        yield bodies
    finally:
        bodies.stop()


@in_loop
async def test_an_unexpected_error_does_not_end_the_process(text_model, integration, tmp_path):
    """Here it is the template's, for a text where it wants an object."""
    folder = shutil.copytree(text_model.folder, tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{{ messages[0].content | dictsort }}")
    with reader(folder) as bodies:
        with pytest.raises(InternalError):
            await bodies.read(asked(b'{"messages": [{"role": "user", "content": "a"}]}'), True, 64, 0)
        child = bodies.child
        with pytest.raises(BadRequestError, match="messages is empty"):
            await bodies.read(asked(b'{"messages": []}'), True, 64, 0)
        assert child is not None and bodies.child is child


def asked(body: bytes) -> HttpRequest:
    return HttpRequest("POST", "/v1/completions", {}, True, True, bytearray(body), received=time.monotonic())


@in_loop
async def test_a_body_that_there_is_no_memory_to_take_in(text_model: Any, integration: None) -> None:
    """The rest of it is not taken for the next one."""
    with reader(text_model.folder) as bodies:
        for _ in range(2):
            with pytest.raises(BadRequestError, match="more memory"):
                await bodies.read(asked(b" " * 2 * ROOM), False, 64, 0)
            body = json.dumps({"prompt": [1, 2], "user": "a" * (ROOM // 8)}).encode()
            for _ in range(6):  # none of them leaves less room for the next
                generation = await bodies.read(asked(body), False, 64, 0)
                assert list(generation.prompts[0]) == [1, 2]


MIB = 1 << 20
#: Fields of a JSON object.
MANY = b",".join(b'"%d":0' % field for field in range(300_000))
POST = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


def rss(server: Any) -> int:
    """Return the bytes of memory that the one front end has."""
    return psutil.Process(server.process.pid).memory_info().rss


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", b'{"prompt": [' + b"[]," * (5 * MIB) + b"[]]}"),
        ("/v1/completions", b'{"prompt": [1], "logit_bias": {' + MANY + b"}}"),
        ("/v1/chat/completions", b'{"messages": [' + b'{"role":"u"},' * MIB + b'{"role":"u"}]}'),
    ],
)
def test_large_bodies_do_not_keep_others_waiting(serving: Any, path: str, body: bytes) -> None:
    """They are decoded elsewhere; the process is started with the first of them."""
    replies: list[Any] = []
    began = time.monotonic()
    sending = threading.Thread(target=lambda: replies.append(serving.request(path, body)))
    sending.start()
    waited = 0.0
    while sending.is_alive():
        start = time.monotonic()
        assert serving.request("/health").status == 200
        waited = max(waited, time.monotonic() - start)
        sending.join(0.01)
    assert replies[0].status == 400
    assert waited < max(0.5, (time.monotonic() - began) / 2)  # as long as it takes where it is decoded here


def test_what_is_made_of_a_body_has_a_bound(serving: Any) -> None:
    """Ten million lists would take 600 MiB; a character beyond 16 bits makes a text four times as long."""
    lists = b'{"prompt": [' + b"[]," * (10 * MIB) + b"[]]}"
    text = '{"prompt": "😀'.encode() + b"a" * (30 * MIB) + b'"}'
    for body in (lists, text):
        reply = serving.request("/v1/completions", body)
        assert reply.status == 400 and "memory" in reply.json["error"]["message"]
    assert serving.complete([1], max_tokens=1, user="a" * MIB).status == 200


def test_bodies_that_wait_to_be_read_leave_with_their_clients(serving: Any) -> None:
    body = b'{"prompt": [' + b"[]," * (10 * MIB) + b"[]]}"
    request = POST + b"content-length: %d\r\n\r\n" % len(body) + body
    before = rss(serving)
    for client in [connect(serving, request) for _ in range(6)]:
        client.close()
    assert wait_for(lambda: rss(serving) - before < 64 * MIB)


def test_a_large_body_is_answered_like_a_small_one(serving: Any) -> None:
    """Also when the process that reads them has been killed before."""
    small = serving.complete([1, 2, 3], max_tokens=4, ignore_eos=True).json
    for _ in range(2):
        padding = " " * MIB
        large = serving.complete([1, 2, 3], max_tokens=4, ignore_eos=True, user=padding).json
        assert large["choices"] == small["choices"] and large["usage"] == small["usage"]
        (reader,) = (
            child
            for child in psutil.Process(serving.process.pid).children()
            if any("large_bodies" in word for word in child.cmdline())
        )
        reader.kill()
        serving.complete([1], user=padding)  # 503: it notices, and starts another for the next


class Turns(LargeBodies):
    """Reads nothing, and says whose turn it was."""

    def __init__(self) -> None:
        super().__init__("", None)
        self.order: list[bytes] = []

    async def _read(self, request: HttpRequest, chat: bool, max_model_len: int) -> Generation:
        self.order.append(bytes(request.take_body()))
        for _ in range(3):
            await asyncio.sleep(0)
        return None  # type: ignore[return-value]


@in_loop
async def test_clients_take_turns() -> None:
    """One has as many waiting as it may, and one of its clients leaves; another's bodies come second."""
    bodies = Turns()

    def read(body: bytes, client: int) -> asyncio.Task[Generation]:
        return asyncio.ensure_future(bodies.read(asked(body), False, 64, client))

    first = [read(b"%d" % index, 1) for index in range(MAX_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(HttpError) as refusal:
        await bodies.read(asked(b"one too many"), False, 64, 1)
    assert refusal.value.status == 429
    others = [read(b"other", 2), read(b"another", 3), read(b"other again", 2)]
    late = asked(b"late")
    late.received -= large_bodies.TIMEOUT
    with pytest.raises(HttpError) as refusal:
        await bodies.read(late, False, 64, 2)
    assert refusal.value.status == 503
    first.pop().cancel()
    await asyncio.gather(*first, *others)
    assert bodies.order[:6] == [b"0", b"other", b"1", b"another", b"other again", b"2"]
    assert len(bodies.order) == MAX_WAITING + 2


def test_more_messages_than_the_context_has_tokens_are_not_rendered() -> None:
    template = ChatTemplate("{{ raise_exception('rendered') }}", {})

    def error(messages: int) -> BadRequestError:
        body = b'{"messages": [%s]}' % b",".join([b'{"role": "user"}'] * messages)
        answer = answer_to(body, True, template, 64, 64)
        assert isinstance(answer, BadRequestError)
        return answer

    assert (error(65).param, error(65).code) == ("messages", "context_length_exceeded")
    assert "rendered" in str(error(64))


def test_chats_that_take_long_to_render_are_large() -> None:
    text, messages = bytearray(b'{"content": "%s"}' % (b"a" * 60_000)), bytearray(b'{"role":"user"}' * 200)
    assert not is_large(text, True) and is_large(text * 2, True)
    assert is_large(messages, True) and not is_large(messages, False)
