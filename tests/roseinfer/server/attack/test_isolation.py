"""Answers under pressure: with too little cache, requests are interrupted and computed again."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.roseinfer.conftest import TEXT_VOCAB

pytestmark = [pytest.mark.slow, pytest.mark.integration]

OPTIONS = (
    "--kv-tokens", "1536", "--prefix-cache", "--chunked-prefill-size", "64", "--frontend-processes", "2",
)  # fmt: skip


@pytest.mark.parametrize("temperature", [0, 1])
def test_preemption(serve: Any, tried: Callable[[int], None], temperature: int) -> None:
    """Answers of requests that are interrupted and computed again: those that they get alone, in fp32."""
    server = serve(*OPTIONS)
    chance = random.Random(temperature)
    shared = [chance.randrange(TEXT_VOCAB) for _ in range(40)]
    bodies = [
        {
            "prompt": shared[: chance.choice((0, 16, 40))]
            + [chance.randrange(TEXT_VOCAB) for _ in range(chance.randint(1, 60))],
            "max_tokens": chance.randint(20, 120), "temperature": temperature, "seed": index,
            "ignore_eos": True, "return_token_ids": True,
        }
        for index in range(50)
    ]  # fmt: skip

    def answer(body: dict[str, Any]) -> list[int]:
        reply = server.request("/v1/completions", body)
        assert reply.status == 200, reply.body
        tokens: list[int] = reply.json["choices"][0]["token_ids"]
        return tokens

    alone = [answer(body) for body in bodies]
    with ThreadPoolExecutor(len(bodies)) as pool:
        together = list(pool.map(answer, bodies))
    assert not [index for index in range(len(bodies)) if together[index] != alone[index]]
    tried(len(bodies))
    assert server.becomes_idle()
    metrics = server.request("/metrics").body.decode()
    assert float(re.search(r"^roseinfer_preemptions_total (\S+)", metrics, re.MULTILINE)[1]) > 0
