"""Clients that leave, and ends of processes: nothing is kept, nothing is left running."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pynvml
import pytest
import torch

from ...conftest import make_llama

TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two GPUs")
#: By so many bytes the used memory of a GPU may differ; a process takes hundreds of MiB.
MARGIN = 64 << 20
LONG = {"ignore_eos": True, "temperature": 0}


def connect(
    server: Any, index: int, *, stream: bool = True, tokens: int = 900, length: int = 20, **settings: Any
) -> socket.socket:
    """A client that has asked for a long answer."""
    asked = {"prompt": [index + 1] * length, "stream": stream, "max_tokens": tokens} | settings
    body = json.dumps(LONG | asked).encode()
    client = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    client.sendall(
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n" % len(body) + body
    )
    return client


def first_chunk(client: socket.socket) -> None:
    """Read until a token has come."""
    data = b""
    while b"data: " not in data:
        data += (more := client.recv(4096))
        assert more


def leave(server: Any, index: int) -> None:
    """Ask, and go: before or after the first chunks, with or without a reset, streaming or not."""
    client = connect(server, index, stream=index % 4 != 0)
    if index % 4 in (1, 2):
        first_chunk(client)
    if index % 3 == 0:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def gpu_memory() -> list[int]:
    """Used bytes of each GPU."""
    if not torch.cuda.is_available():
        return []
    pynvml.nvmlInit()
    gpus = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    return [pynvml.nvmlDeviceGetMemoryInfo(gpu).used for gpu in gpus]


def sockets(process: psutil.Process) -> int:
    """The sockets that a process has open."""
    found = 0
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found += str(link.readlink()).startswith("socket:")
    return found


def shared_memory() -> set[Path]:
    return {*Path("/dev/shm").iterdir()}


def test_hundreds_of_clients_leave(serving: Any, text_model: Any) -> None:
    """Their whole answers would have 270,000 tokens."""
    with ThreadPoolExecutor(50) as pool:
        list(pool.map(lambda index: leave(serving, index), range(300)))
    assert serving.becomes_idle()
    body = serving.complete(text_model.prompt, max_tokens=6, ignore_eos=True, return_token_ids=True).json
    assert body["choices"][0]["token_ids"] == text_model.answer[:6]


def test_load_shows_what_runs(serving: Any) -> None:
    clients = [connect(serving, index) for index in range(3)]
    for client in clients:
        first_chunk(client)
    load = serving.load()
    assert load["running"] == 3 and load["waiting"] == 0 and load["inflight"] == 3
    assert 0 < load["kv_usage"] < 1
    assert "in flight" in serving.request("/integrity").json["error"]["message"]
    for client in clients:
        client.close()
    assert serving.becomes_idle()


def test_engine_killed(serve: Any) -> None:
    """Unfinished answers end with an error, the server ends by itself, and says why. The engine's other rank
    is gone too."""
    server = serve("--tensor-parallel-size", "2")
    ranks = server.engine.children()
    stream, whole = connect(server, 0), connect(server, 1, stream=False)
    first_chunk(stream)
    server.engine.kill()
    rest = stream.makefile("rb").read()
    assert b'"type":"server_error"' in rest and b"[DONE]" in rest
    head, _, body = whole.makefile("rb").read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert json.loads(body)["error"]["type"] == "server_error"
    assert server.ended() and len(ranks) == 1 and not psutil.wait_procs(ranks, 60)[1]
    assert server.process.returncode == 1
    server._drain.join()
    assert "SIGKILL" in server.log[-1]


def kill(server: Any, rank: psutil.Process) -> None:
    rank.kill()


def suspend(server: Any, rank: psutil.Process) -> None:
    rank.suspend()


def starve(server: Any, rank: psutil.Process) -> None:
    """Its logits of 256 tokens of a prompt take 25 MiB, and it gets 16 more than it has: enough for what else
    it computes, which oneDNN would not report as a lack of memory."""
    most = rank.memory_info().vms + (16 << 20)
    rank.rlimit(psutil.RLIMIT_AS, (most, most))
    with connect(server, 1, length=900, tokens=1, echo=True, logprobs=1) as client:
        client.makefile("rb").read()


KILLED = (kill, r"rank 1 of the engine has ended \(killed by SIGKILL\)")
HUNG = (suspend, r"waited 1 s for another rank of the engine \(rank 1 is stopped\)")
STARVED = (starve, r"rank 1 of the engine has ended \(exit code 2\): not enough memory: ")


@pytest.mark.parametrize(
    ("device", "replicas", "fault", "why"),
    [
        pytest.param("cpu", 2, *KILLED, id="cpu-killed"),
        pytest.param("cpu", 1, *HUNG, id="cpu-hung"),
        pytest.param("cpu", 1, *STARVED, id="cpu-without-memory"),
        pytest.param("cuda", 1, *KILLED, id="cuda-killed", marks=TWO_GPUS),
        pytest.param("cuda", 1, *HUNG, id="cuda-hung", marks=TWO_GPUS),
    ],
)
def test_a_rank_lost(
    serve: Any,
    tmp_path: Path,
    device: str,
    replicas: int,
    fault: Callable[[Any, psutil.Process], None],
    why: str,
) -> None:
    """An engine that has lost one of its processes ends, says which and how, and leaves nothing: the memory
    of steps has no name and goes with the last process that has it."""
    folder = make_llama(tmp_path / "model", "qwen3") if device == "cuda" else None
    (tmp_path / "left").mkdir()
    names, used = shared_memory(), gpu_memory()
    server = serve(
        "--tensor-parallel-size", "2", "--rank-timeout-s", "1" if fault is suspend else "30",
        "--device", device, "--data-parallel-size", str(replicas), "--grace-seconds", "0",
        folder=folder, environment={"TMPDIR": str(tmp_path / "left")},
    )  # fmt: skip
    clients = [connect(server, index) for index in range(replicas)]
    for client in clients:
        first_chunk(client)
    ranks = [rank for engine in server.engines for rank in engine.children()]
    assert len(ranks) == replicas
    assert all(any("memfd:roseinfer-step" in part.path for part in rank.memory_maps()) for rank in ranks)
    fault(server, ranks[0])
    for client in clients:
        rest = client.makefile("rb").read()
        assert b'"type":"server_error"' in rest and b"[DONE]" in rest
    assert server.ended() and not psutil.wait_procs(ranks, 60)[1]
    assert server.process.returncode == 1
    server._drain.join()
    assert any(re.search(why, line) for line in server.log), server.log
    assert not list((tmp_path / "left").iterdir())
    end = time.monotonic() + 30  # other processes may come and go, and the driver frees memory a little later
    while more := [
        *(shared_memory() - names),
        *(n - u for n, u in zip(gpu_memory(), used, strict=True) if n > u + MARGIN),
    ]:
        assert time.monotonic() < end, more
        time.sleep(0.01)


def test_connections_are_shared_evenly_until_a_front_end_is_killed(serve: Any) -> None:
    """Kept connections count as well, and those that have closed do not. A server that answers only some of
    its clients ends."""
    server = serve("--frontend-processes", "3")
    processes = [psutil.Process(server.process.pid), *server.front_ends]
    before = [*map(sockets, processes)]

    def open_connections(expected: int) -> list[int]:
        """Of each process, once there are as many as expected. A process closes a socket after it has counted
        the connection as closed, and so later than a client sees."""
        end = time.monotonic() + 60
        while True:
            found = [sockets(process) - own for process, own in zip(processes, before, strict=True)]
            if sum(found) == expected or time.monotonic() > end:
                return found
            time.sleep(0.01)

    clients = [connect(server, index, tokens=2) for index in range(9)]
    for client in clients:
        first_chunk(client)
    assert open_connections(9) == [3, 3, 3]
    for client in clients[:3]:
        client.close()
    assert open_connections(6) == [2, 2, 2]
    clients += [connect(server, index) for index in range(3)]
    for client in clients[9:]:
        first_chunk(client)
    assert open_connections(9) == [3, 3, 3]

    server.front_ends[1].kill()
    assert server.ended()
    assert server.process.returncode == 1
    server._drain.join()
    assert "front end 2" in server.log[-1] and "SIGKILL" in server.log[-1]


def test_ctrl_c(serve: Any) -> None:
    """With unfinished answers; the engine, which Ctrl-C does not reach, ends too."""
    server = serve()
    clients = [connect(server, index, tokens=150) for index in range(4)]
    first_chunk(clients[0])
    server.process.send_signal(signal.SIGINT)
    assert server.ended()
    assert server.process.returncode == 0
    server._drain.join()
    assert not [line for line in server.log if "Traceback" in line]


def test_server_killed(serve: Any) -> None:
    server = serve("--tensor-parallel-size", "2")
    ranks = server.engine.children()
    client = connect(server, 0)
    first_chunk(client)
    server.process.kill()
    assert server.ended() and len(ranks) == 1 and not psutil.wait_procs(ranks, 60)[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ended_while_starting(launch: Any, number: signal.Signals) -> None:
    process = launch()
    parent = psutil.Process(process.pid)
    while not (children := parent.children()):
        assert process.poll() is None
    process.send_signal(number)
    process.wait(60)
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not [child for child in alive if child.status() != psutil.STATUS_ZOMBIE]
