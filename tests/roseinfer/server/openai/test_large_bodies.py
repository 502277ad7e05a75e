"""Large bodies, as the process that reads them gets them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from roseinfer.server.http.errors import BadRequestError
from roseinfer.server.http.parser import HttpRequest
from roseinfer.server.openai.large_bodies import ROOM, LargeBodies


def asked(body: bytes) -> HttpRequest:
    return HttpRequest("POST", "/v1/completions", {}, True, True, bytearray(body))


def test_a_body_that_there_is_no_memory_to_take_in(text_model: Any, integration: None) -> None:
    """What was not read of it is not taken for the next one."""
    bodies = LargeBodies(str(text_model.folder), None)

    async def read() -> None:
        try:
            for _ in range(2):
                with pytest.raises(BadRequestError, match="more memory"):
                    await bodies.read(asked(b" " * 2 * ROOM), False, 64)
                body = json.dumps({"prompt": [1, 2], "user": "a" * (ROOM // 8)}).encode()
                for _ in range(6):  # none of them leaves less room for the next
                    _, generation = await bodies.read(asked(body), False, 64)
                    assert list(generation.prompts[0]) == [1, 2]
        finally:
            bodies.stop()

    asyncio.run(read())
