"""Large bodies, as the process that reads them gets them."""

from __future__ import annotations

import asyncio
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from roseinfer.server.http.errors import BadRequestError, InternalError
from roseinfer.server.http.parser import HttpRequest
from roseinfer.server.openai.large_bodies import ROOM, LargeBodies, answer_to
from roseinfer.tokenizer.chat import ChatTemplate


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


def test_an_unexpected_error_does_not_end_the_process(
    text_model: Any, integration: None, tmp_path: Path
) -> None:
    """Here it is the template's, for a text where it wants an object."""
    folder = shutil.copytree(text_model.folder, tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{{ messages[0].content | dictsort }}")
    bodies = LargeBodies(str(folder), None)

    async def read() -> None:
        try:
            with pytest.raises(InternalError):
                await bodies.read(asked(b'{"messages": [{"role": "user", "content": "a"}]}'), True, 64)
            child = bodies.child
            with pytest.raises(BadRequestError, match="messages is empty"):
                await bodies.read(asked(b'{"messages": []}'), True, 64)
            assert child is not None and bodies.child is child
        finally:
            bodies.stop()

    asyncio.run(read())


def asked(body: bytes) -> HttpRequest:
    return HttpRequest("POST", "/v1/completions", {}, True, True, bytearray(body))


def test_a_body_that_there_is_no_memory_to_take_in(text_model: Any, integration: None) -> None:
    """The rest of it is not taken for the next one."""
    bodies = LargeBodies(str(text_model.folder), None)

    async def read() -> None:
        try:
            for _ in range(2):
                with pytest.raises(BadRequestError, match="more memory"):
                    await bodies.read(asked(b" " * 2 * ROOM), False, 64)
                body = json.dumps({"prompt": [1, 2], "user": "a" * (ROOM // 8)}).encode()
                for _ in range(6):  # none of them leaves less room for the next
                    generation = await bodies.read(asked(body), False, 64)
                    assert list(generation.prompts[0]) == [1, 2]
        finally:
            bodies.stop()

    asyncio.run(read())
