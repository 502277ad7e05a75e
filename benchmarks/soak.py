"""Clients that leave and clients that stay, thousands of each, against one `roseinfer serve`.

    python -m benchmarks.soak [--rounds 10] [--clients 1000] [--concurrency 48] [-- SERVER OPTIONS]

A round is `--clients` requests that are read to their end and as many that are not, in random order. The rest
of the answers are those that a lone client got before the first round. After each round the server must say
that every block of its cache is free, and what its processes hold is written down. Exit code 1 if an answer
was another one, a block or a connection is held, or if since the first round, or a later one (`--warm`), a
process of the server has got more threads, or more than `--bound-mib` of memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psutil

from benchmarks.running_server import running_server

#: As many requests as run together; the other clients wait in the engine's queue.
RUNNING = 16
SERVER = ("--model", "random:gpt2-tiny", "--device", "cpu", "--dtype", "fp32", "--port", "0",
          "--max-active-requests", str(RUNNING))  # fmt: skip
TOKENS, PROMPTS = 8, 64
TEXT = "A text that takes the tokenizer a while, because it has never seen it before: "
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class Holding:
    """Memory and threads of the server's processes after a round, in their order, and its duration in s."""

    wall: float
    cpu: float
    rss_mib: list[float]
    threads: list[int]


@dataclass(frozen=True)
class Client:
    """Speaks to the server at `port`, on a new connection for every request."""

    port: int

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Connection]:
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # who does not read fills it soon
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=4096)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def ask(self, path: str, body: Any = None) -> tuple[int, bytes]:
        """Status and body of the whole response."""
        async with self.connect() as (reader, writer):
            writer.write(request(path, body))
            head, _, answer = (await reader.read(-1)).partition(b"\r\n\r\n")
            return int(head.split()[1]), answer

    async def answer(self, body: dict[str, Any]) -> list[int]:
        """The tokens of the answer to `body`, streamed or not."""
        status, data = await self.ask("/v1/completions", body)
        if status != 200:
            raise AssertionError(f"{status}: {data!r}")
        events = re.findall(rb"^data: (\{.*)$", data, re.MULTILINE) if body["stream"] else [data]
        choices = [choice for event in events for choice in json.loads(event)["choices"]]
        return [token for choice in choices for token in choice["token_ids"]]


def request(path: str, body: Any = None) -> bytes:
    """Write a request whose response ends with the connection."""
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    kind = b"content-type: application/json\r\n"
    return head.encode() + kind + b"content-length: %d\r\n\r\n" % len(data) + data


def asked(index: int) -> dict[str, Any]:
    """Request `index` of those that are read to their end: each an own mix of what a request can be."""
    words = random.Random(index)
    prompt = [words.randrange(50_000) for _ in range(24)] if index % 2 else f"{words.random()} " * 4
    return {
        "prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True, "temperature": index // 2 % 2,
        "seed": index, "stream": index // 4 % 2 == 0, "return_token_ids": True,
    }  # fmt: skip


def long(tokens: int, **change: Any) -> bytes:
    """A request for `tokens` tokens whose answer the client does not wait for."""
    body = {"prompt": [random.randrange(50_000) for _ in range(24)], "ignore_eos": True, "stream": True}
    return request("/v1/completions", body | {"max_tokens": tokens} | change)


async def before_the_first_token(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tokens: int
) -> None:
    writer.write(long(tokens))
    await writer.drain()


async def while_queued(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tokens: int) -> None:
    """Leave while half or more of the 32 answers of one request wait."""
    writer.write(long(tokens, n=2 * RUNNING, stream=False))
    await asyncio.sleep(0.02)


async def while_tokenizing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tokens: int) -> None:
    writer.write(long(10, prompt=f"{random.random()} {TEXT * 40}"))
    await writer.drain()


async def mid_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tokens: int) -> None:
    writer.write(long(tokens))
    await reader.readuntil(b"\ndata: ")


async def mid_stream_with_a_reset(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tokens: int
) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await mid_stream(reader, writer, tokens)


async def half_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tokens: int) -> None:
    """Says that it sends no more, and waits for what the server makes of it."""
    await mid_stream(reader, writer, tokens)
    writer.write_eof()
    while await reader.read(4096):
        pass


async def half_a_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tokens: int) -> None:
    whole = long(tokens)
    writer.write(whole[: random.randrange(1, len(whole))])
    await asyncio.sleep(0.02)


async def without_reading(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tokens: int) -> None:
    writer.write(long(tokens, n=4, return_token_ids=True))
    await asyncio.sleep(0.2)


WAYS_TO_LEAVE = (
    before_the_first_token, while_queued, while_tokenizing, mid_stream, mid_stream_with_a_reset, half_closed,
    half_a_request, without_reading,
)  # fmt: skip


async def leave(client: Client, index: int, tokens: int) -> None:
    """Ask for `tokens` tokens, and go."""
    async with client.connect() as connection:
        await WAYS_TO_LEAVE[index % len(WAYS_TO_LEAVE)](*connection, tokens)


async def becomes_idle(client: Client, processes: Sequence[psutil.Process], descriptors: int) -> None:
    """Wait until the engine says that no request is in flight and every block is free, and all connections
    are closed: the server's processes have `descriptors` again."""
    end = time.monotonic() + 60
    while (answer := await client.ask("/integrity"))[0] != 200 or held(processes) > descriptors:
        if time.monotonic() > end:
            raise AssertionError(f"{held(processes)} instead of {descriptors} descriptors; {answer}")
        await asyncio.sleep(0.05)


def held(processes: Sequence[psutil.Process]) -> int:
    return sum(process.num_fds() for process in processes)


async def run_round(client: Client, expected: Sequence[list[int]], settings: argparse.Namespace) -> None:
    """Raises AssertionError when an answer is not the expected one."""

    async def stay(index: int) -> None:
        which = index % PROMPTS
        if (answer := await client.answer(asked(which))) != expected[which]:
            raise AssertionError(f"{answer} instead of {expected[which]}")

    async def work() -> None:
        while todo:
            action, index = todo.pop()
            await action(index)

    async def go(index: int) -> None:
        await leave(client, index, settings.left_tokens)

    actions: tuple[Callable[[int], Awaitable[None]], ...] = (stay, go)
    todo = [(action, index) for action in actions for index in range(settings.clients)]
    random.shuffle(todo)
    async with asyncio.TaskGroup() as group:
        for _ in range(settings.concurrency):
            group.create_task(work())


async def soak(port: int, processes: Sequence[psutil.Process], settings: argparse.Namespace) -> list[Holding]:
    """Return what the processes hold after each round."""
    client = Client(port)
    descriptors = held(processes)
    expected = [await client.answer(asked(index)) for index in range(min(PROMPTS, settings.clients))]
    rounds = []
    for index in range(settings.rounds):
        begun, cpu = time.monotonic(), cpu_seconds(processes)
        await run_round(client, expected, settings)
        await becomes_idle(client, processes, descriptors)
        wall, spent = time.monotonic() - begun, cpu_seconds(processes) - cpu
        await asyncio.sleep(settings.rest)
        holding = Holding(
            wall,
            spent,
            [process.memory_info().rss / 2**20 for process in processes],
            [process.num_threads() for process in processes],
        )
        rounds.append(holding)
        memory = " ".join(f"{rss:8.1f}" for rss in holding.rss_mib)
        print(f"{index + 1:5} {holding.wall:8.1f} {holding.cpu:9.1f}  {memory}", flush=True)
    metrics = (await client.ask("/metrics"))[1].decode()
    for name in ("requests", "discarded", "prompt_tokens", "generation_tokens"):
        print(name, re.findall(rf"^roseinfer_{name}_total (\S+)", metrics, re.MULTILINE)[0])
    return rounds


def cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def judge(rounds: Sequence[Holding], bound_mib: float) -> list[str]:
    """Return the faults."""
    first, last = rounds[0], rounds[-1]
    growth = [after - before for before, after in zip(first.rss_mib, last.rss_mib, strict=True)]
    print("growth, MiB:", " ".join(f"{mib:.1f}" for mib in growth))
    print(f"last round / first round: {last.wall / first.wall:.2f} of its time, "
          f"{last.cpu / first.cpu:.2f} of the server's CPU time")  # fmt: skip
    faults = [f"a process has grown by {mib:.1f} MiB" for mib in growth if mib > bound_mib]
    if last.threads != first.threads:
        faults.append(f"{last.threads} instead of {first.threads} threads")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--clients", type=int, default=1000, help="that leave, and that stay, in a round")
    parser.add_argument("--concurrency", type=int, default=3 * RUNNING)
    parser.add_argument("--left-tokens", type=int, default=400, help="that clients who leave ask for")
    parser.add_argument("--warm", type=int, default=1, help="round from which memory must be flat")
    parser.add_argument("--bound-mib", type=float, default=8.0, help="growth allowed to a process")
    parser.add_argument("--rest", type=float, default=4.0, help="seconds before memory is read: free memory "
                        "goes back to the system after a moment without work")  # fmt: skip
    parser.add_argument("server", nargs="*", help="more options of `roseinfer serve`")
    settings = parser.parse_args()
    random.seed(0)
    command = [sys.executable, "-m", "roseinfer.cli", "serve", *SERVER, *settings.server]
    with running_server(command) as (port, processes):
        print("round  seconds  CPU s     " + "RSS MiB of front end, engine, other front ends")
        rounds = asyncio.run(soak(port, processes, settings))
        faults = judge(rounds[settings.warm - 1 :], settings.bound_mib)
    print("\n".join(faults) or "nothing leaked")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
