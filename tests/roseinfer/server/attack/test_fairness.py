"""Floods of one client, while another streams, a third asks for single tokens, and a probe for /health."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import random
import shutil
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.roseinfer.conftest import TEXT_VOCAB
from tests.roseinfer.server.attack.conftest import SECONDS, SEED, environment_number
from tests.roseinfer.server.clients import post

pytestmark = [pytest.mark.slow, pytest.mark.integration]

#: Connections of the client that floods, and how many of the engine's steps a first token may come later.
CONNECTIONS, STEPS_LATER = 12, 5
KEYS = ("flooding", "streaming", "asking")
#: Compares as much for each message as the templates of models that call tools.
TEMPLATE = """{% for message in messages[::-1] %}{% set index = messages|length - loop.index0 %}{% endfor %}
{%- for message in messages %}{% set content = message.content.split('</think>')[-1].lstrip('\\n') %}
{%- if message.role == 'tool' and (loop.first or messages[loop.index0 - 1].role != 'tool') %}<tool>{% endif %}
{%- for call in message.tool_calls or () %}{{ call.function.arguments | tojson }}{% endfor %}
{{- '<' + message.role + '>' + content }}{% endfor %}"""

Draw = random.Random


def size(draw: Draw, least: int, most: int) -> int:
    """Draw a size whose order of magnitude is uniform."""
    return int(least * (most / least) ** draw.random())


def ids(draw: Draw, count: int) -> list[int]:
    return [draw.randrange(TEXT_VOCAB - 1) for _ in range(count)]


def many_choices(draw: Draw) -> bytes:
    body = {"prompt": ids(draw, size(draw, 1, 800)), "n": draw.randint(32, 128)}
    return completion(body | {"max_tokens": size(draw, 1, 100), "ignore_eos": True})


def sampled_choices(draw: Draw) -> bytes:
    sampling = {
        "temperature": draw.choice((0.5, 1, 2, 100)),
        "top_p": draw.choice((0.01, 0.5, 0.9, 0.999999, 1)),
    }
    sampling |= {"top_k": draw.choice((0, 1, 50, 5000)), "min_p": draw.choice((0, 0, 0.1))}
    return completion(sampling | {"prompt": ids(draw, 3), "n": 128, "max_tokens": 50, "ignore_eos": True})


def large_completion(draw: Draw) -> bytes:
    count = size(draw, 1000, 1_000_000)
    values: tuple[Any, ...] = ("a " * count, "😀" * count, [1] * count, ["a"] * count, [[]] * count)
    return completion({"prompt": draw.choice(values), "user": "a" * size(draw, 1, 1_000_000)})


def chat(draw: Draw) -> bytes:
    """Return many short messages or a few long ones, of all kinds that templates treat differently."""
    call = {"function": {"name": "f", "arguments": json.dumps({"a": [0] * size(draw, 1, 30_000)})}}
    messages: list[dict[str, Any]] = [
        {"role": draw.choice(("user", "assistant", "tool", "system"))},
        {"role": "assistant", "content": "</think>" * size(draw, 1, 1000)},
        {"role": "assistant", "tool_calls": [call] * size(draw, 1, 100)},
        {"role": "user", "content": [{"type": "text", "text": "a"}] * size(draw, 1, 1000)},
        {"role": "user", "content": "a\n" * size(draw, 1, 100_000)},
    ]
    kinds = draw.sample(messages, draw.randint(1, 3))
    length = len(json.dumps(kinds))
    few = kinds * max(1, size(draw, 2_000, draw.choice((60_000, 500_000, 5_000_000))) // length)
    return post({"messages": few, "max_tokens": 1}, *key(0), path="/v1/chat/completions")


def key(index: int) -> tuple[str, ...]:
    return f"authorization: Bearer {KEYS[index]}", "connection: close"


def completion(body: dict[str, Any], client: int = 0) -> bytes:
    return post(body, *key(client))


async def answer(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await reader.read()
    finally:
        writer.close()


def flood(port: int, make: Callable[[Draw], bytes], seed: int, seconds: float, sent: Any) -> None:
    """Send what `make` makes over several connections; now and then, leave before the answer."""

    async def send(draw: Draw) -> None:
        while True:
            with contextlib.suppress(OSError, TimeoutError):
                await asyncio.wait_for(answer(port, make(draw)), draw.choice((0.05, 0.5, 10)))
            sent.value += 1

    async def run() -> None:
        tasks = (send(Draw(seed * CONNECTIONS + index)) for index in range(CONNECTIONS))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*tasks), seconds)

    asyncio.run(run())


class Observed:
    """Other clients' view: gaps of a stream and times of /health (s), and steps, which are the stream's
    tokens, until another client's single token came."""

    def __init__(self) -> None:
        self.gaps, self.health, self.steps = list[float](), list[float](), list[int]()

    async def watch(self, port: int, seconds: float) -> Observed:
        tasks = [
            asyncio.ensure_future(each) for each in (self._stream(port), self._ask(port), self._probe(port))
        ]
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(outcome, asyncio.CancelledError), outcome
        return self

    async def _stream(self, port: int) -> None:
        body = {"prompt": [1], "max_tokens": 900, "ignore_eos": True, "stream": True, "temperature": 0}
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.closing(writer):
                writer.write(completion(body, 1))
                before = 0.0
                while data := await reader.read(65536):
                    now = time.monotonic()
                    tokens = data.count(b"data: {")
                    self.gaps += [now - before] * bool(before and tokens) + [0.0] * (tokens - 1)
                    before = now

    async def _ask(self, port: int) -> None:
        while True:
            before = len(self.gaps)
            reply = await answer(port, completion({"prompt": [2], "max_tokens": 1}, 2))
            assert reply.startswith(b"HTTP/1.1 200 "), reply
            self.steps.append(len(self.gaps) - before)
            await asyncio.sleep(0.02)

    async def _probe(self, port: int) -> None:
        while True:
            before = time.monotonic()
            reply = await answer(
                port, b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
            )
            assert reply.startswith(b"HTTP/1.1 200 "), reply
            self.health.append(time.monotonic() - before)
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("make", [many_choices, sampled_choices, large_completion, chat])
def test_floods_of_a_client(serve, text_model, tmp_path, tried, make):
    """Floods of one client in 4 ways: another's first token comes at most 5 steps later."""
    folder = shutil.copytree(text_model.folder, tmp_path / "chat")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    options = ("--frontend-processes", "1", "--max-active-requests", "128")
    server = serve(*options, folder=folder, environment={"ROSEINFER_API_KEY": "\n".join(KEYS)})
    seconds = max(4.0, environment_number(SECONDS) / 4)
    alone = asyncio.run(Observed().watch(server.port, seconds / 2))
    sent = multiprocessing.get_context("fork").Value("q", 0)
    attack = (server.port, make, int(environment_number(SEED)), seconds + 1, sent)
    attacker = multiprocessing.get_context("fork").Process(target=flood, args=attack)
    attacker.start()
    time.sleep(1)
    flooded = asyncio.run(Observed().watch(server.port, seconds))
    attacker.join()
    steps = [int(np.median(observed.steps)) for observed in (alone, flooded)]
    gaps = [np.percentile(observed.gaps, 99) * 1e3 for observed in (alone, flooded)]
    health = [np.percentile(observed.health, 99) * 1e3 for observed in (alone, flooded)]
    later = f"{make.__name__.replace('_', ' ')}: first token after {steps[1]} steps ({steps[0]} alone)"
    times = f"/health p99 {health[1]:.0f} ms ({health[0]:.0f}), gaps p99 {gaps[1]:.0f} ms ({gaps[0]:.0f})"
    tried(sent.value, f"{later}, {times}")
    assert steps[1] <= steps[0] + STEPS_LATER
    assert server.becomes_idle({"authorization": f"Bearer {KEYS[1]}"})
    assert not server.faults
