"""Faults of the machine below a server, too little cache, and thousands of clients that leave."""

from __future__ import annotations

import json
import random
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.roseinfer.conftest import TEXT_VOCAB
from tests.roseinfer.server.attack.conftest import SECONDS, environment_number
from tests.roseinfer.server.clients import connect, post, read_all, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.integration]


LONG = {"prompt": [1], "max_tokens": 900, "ignore_eos": True, "stream": True}


def test_stopped_reader(serve: Any, tried: Callable[[int], None]) -> None:
    """SIGSTOP of the process that reads large bodies: others are answered, and it is replaced."""
    server = serve("--frontend-processes", "1")
    large = json.dumps({"prompt": [1], "max_tokens": 1, "user": "a" * 2**20}).encode()
    assert server.request("/v1/completions", large).status == 200
    (reader,) = (
        child
        for child in psutil.Process(server.process.pid).children()
        if any("large_bodies" in word for word in child.cmdline())
    )
    reader.suspend()
    with connect(server, post(large, "connection: close")) as client:
        assert server.complete([1], max_tokens=1).status == 200
        assert b" 503 " in read_all(client)
    assert server.request("/v1/completions", large).status == 200
    tried(1)


def test_full_disk(serve: Any, tmp_path: Path, tried: Callable[[int], None]) -> None:
    """A file that cannot grow: a profile fails with a reason, leaves nothing, and the next works.

    One before imports what profiles need: under the limit Python would leave half of a module's bytecode."""
    server = serve("--profile-dir", str(tmp_path))
    assert server.request("/start_profile", {}).status == 200
    assert server.request("/stop_profile", b"", "POST").status == 200
    for trace in tmp_path.rglob("*.json.gz"):
        trace.unlink()
    server.engine.rlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    assert server.request("/start_profile", {"num_steps": 2}).status == 200
    assert server.complete([1], max_tokens=8, ignore_eos=True).status == 200
    reply = server.request("/stop_profile", b"", "POST")
    assert reply.status == 400 and reply.json["error"]["message"]
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]
    server.engine.rlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert server.request("/start_profile", {"num_steps": 2}).status == 200
    assert server.complete([1], max_tokens=8, ignore_eos=True).status == 200
    assert server.becomes_idle()
    assert not [line for line in server.log if "Traceback" in line]
    tried(1)


@pytest.mark.parametrize("index", range(2))
def test_no_descriptors(serve: Any, tried: Callable[[int], None], index: int) -> None:
    """A front end without descriptors: clients wait or are turned away, until there are some again."""
    server = serve("--frontend-processes", "2")
    process = [psutil.Process(server.process.pid), *server.front_ends][index]
    most = process.num_fds() + 20
    process.rlimit(resource.RLIMIT_NOFILE, (most, process.rlimit(resource.RLIMIT_NOFILE)[1]))
    clients = [connect(server) for _ in range(200)]
    assert wait_for(lambda: process.num_fds() >= most - 1)
    for client in clients:
        client.close()
    assert wait_for(lambda: process.num_fds() < most - 10)
    assert wait_for(lambda: server.request("/health").status == 200)
    for _ in range(10):
        assert server.complete([1], max_tokens=1).status == 200
    assert not [line for line in server.log if "Traceback" in line]
    tried(200)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_signals(serve: Any, tried: Callable[[int], None], number: signal.Signals) -> None:
    """Signals to end, with clients that do not read: no process is left."""
    server = serve("--frontend-processes", "2")
    clients = [connect(server, post(LONG | {"n": 8}, "connection: close")) for _ in range(4)]
    assert clients[0].recv(100)
    server.process.send_signal(number)
    assert server.ended()
    tried(1)


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


ROOT = Path(__file__).parents[4]


def test_soak(tried: Callable[[int], None]) -> None:
    """Clients that leave in nine ways, and that stay: right answers, flat memory, every block free."""
    seconds = environment_number(SECONDS)
    command = [
        sys.executable, "-m", "benchmarks.soak", "--rounds", "7", "--warm", "4", "--clients", "150",
        "--seconds", str(seconds), "--bound-mib", "24",
        "--", "--frontend-processes", "2", "--prefix-cache", "--kv-tokens", "2048", "--threads", "1",
    ]  # fmt: skip
    soak = subprocess.run(command, capture_output=True, text=True, timeout=900 + seconds, cwd=ROOT)
    assert soak.returncode == 0, soak.stdout + soak.stderr
    requests = re.search(r"^requests (\S+)", soak.stdout, re.MULTILINE)
    tried(int(float(requests[1])))
    assert "nothing leaked" in soak.stdout
