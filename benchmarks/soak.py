"""Clients that leave and clients that stay, thousands of each, against one `roseinfer serve`.

    python -m benchmarks.soak [--rounds 10] [--seconds 600] [--clients 1000] [-- SERVER OPTIONS]

A round is `--clients` requests that are read to their end and as many that are not, in random order. There
are `--rounds`, and more until `--seconds` have passed. Answers must be those that a lone client got before.
After each round `/integrity` must say that every block is free, connections must be closed, and what the
server's processes hold is written down. Exit code 1 if not, or if since the first round, or a later one
(`--warm`), a process of the server has got more threads, or more than `--bound-mib` of memory.
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
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
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


@dataclass(frozen=True)
class Holding:
    """Memory and threads of the server's processes after a round, in their order, and its CPU time in s."""

    cpu: float
    rss_mib: list[float]
    threads: list[int]


@dataclass(frozen=True)
class Client:
    """Speaks to the server at `port`, on a new connection for every request."""

    port: int

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[tuple[Reader, Writer]]:
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


async def before_the_first_token(reader: Reader, writer: Writer, tokens: int) -> None:
    writer.write(long(tokens))
    await writer.drain()


async def while_queued(reader: Reader, writer: Writer, tokens: int) -> None:
    """Leave while half or more of the 32 answers of one request wait."""
    writer.write(long(tokens, n=2 * RUNNING, stream=False))
    await asyncio.sleep(0.02)


async def while_tokenizing(reader: Reader, writer: Writer, tokens: int) -> None:
    writer.write(long(10, prompt=f"{random.random()} {TEXT * 40}"))
    await writer.drain()


async def mid_stream(reader: Reader, writer: Writer, tokens: int) -> None:
    writer.write(long(tokens))
    await reader.readuntil(b"\ndata: ")


async def mid_stream_with_a_reset(reader: Reader, writer: Writer, tokens: int) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await mid_stream(reader, writer, tokens)


async def half_closed(reader: Reader, writer: Writer, tokens: int) -> None:
    """Says that it sends no more, and waits for what the server makes of it."""
    await mid_stream(reader, writer, tokens)
    writer.write_eof()
    while await reader.read(4096):
        pass


async def half_a_request(reader: Reader, writer: Writer, tokens: int) -> None:
    whole = long(tokens)
    writer.write(whole[: random.randrange(1, len(whole))])
    await asyncio.sleep(0.02)


async def without_reading(reader: Reader, writer: Writer, tokens: int) -> None:
    writer.write(long(tokens, n=4, return_token_ids=True))
    await asyncio.sleep(0.2)


async def after_a_strange_request(reader: Reader, writer: Writer, tokens: int) -> None:
    """Send a chat, random bytes or a large body, and leave at some time, perhaps after the answer."""
    chat = {"messages": [{"role": "user", "content": TEXT * random.choice((1, 10, 100))}], "stream": True}
    large = {"prompt": "a " * 400_000}
    body = random.choice((chat, large, None))
    path = "/v1/chat/completions" if body is chat else "/v1/completions"
    writer.write(random.randbytes(4096) if body is None else request(path, body))
    await asyncio.wait([asyncio.ensure_future(reader.read(4096))], timeout=random.random())


WAYS_TO_LEAVE = (
    before_the_first_token, while_queued, while_tokenizing, mid_stream, mid_stream_with_a_reset, half_closed,
    half_a_request, without_reading, after_a_strange_request,
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
    large = (client.ask("/v1/completions", {"prompt": "a " * 400_000}) for _ in range(16))
    await asyncio.gather(*large)  # each front end starts the process that reads large bodies
    descriptors = held(processes)
    expected = [await client.answer(asked(index)) for index in range(min(PROMPTS, settings.clients))]
    rounds = list[Holding]()
    end = time.monotonic() + settings.seconds
    while len(rounds) < settings.rounds or time.monotonic() < end:
        cpu = cpu_seconds(processes)
        await run_round(client, expected, settings)
        await becomes_idle(client, processes, descriptors)
        spent = cpu_seconds(processes) - cpu
        await asyncio.sleep(settings.rest)
        holding = Holding(
            spent,
            [process.memory_info().rss / 2**20 for process in processes],
            [process.num_threads() for process in processes],
        )
        rounds.append(holding)
        memory = " ".join(f"{rss:8.1f}" for rss in holding.rss_mib)
        print(f"{len(rounds):5} {holding.cpu:9.1f}  {memory}", flush=True)
    metrics = (await client.ask("/metrics"))[1].decode()
    for name in ("requests", "discarded", "prompt_tokens", "generation_tokens"):
        print(name, re.findall(rf"^roseinfer_{name}_total (\S+)", metrics, re.MULTILINE)[0])
    print(f"descriptors: {descriptors} before, {held(processes)} after; every block free, /integrity 200")
    return rounds


def cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def judge(rounds: Sequence[Holding], bound_mib: float) -> list[str]:
    """Return the faults."""
    first, last = rounds[0], rounds[-1]
    growth = [after - before for before, after in zip(first.rss_mib, last.rss_mib, strict=True)]
    sizes = (f"{a:.1f} → {b:.1f}" for a, b in zip(first.rss_mib, last.rss_mib, strict=True))
    print("MiB:", ", ".join(sizes))
    print(f"CPU time of the server, last round / first round: {last.cpu / first.cpu:.2f}")
    faults = [f"a process has grown by {mib:.1f} MiB" for mib in growth if mib > bound_mib]
    if last.threads != first.threads:
        faults.append(f"{last.threads} instead of {first.threads} threads")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=0.0, help="at least")
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
        print("round  CPU s     " + "RSS MiB of front end, engine, other front ends")
        rounds = asyncio.run(soak(port, processes, settings))
        faults = judge(rounds[settings.warm - 1 :], settings.bound_mib)
    print("\n".join(faults) or "nothing leaked")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
