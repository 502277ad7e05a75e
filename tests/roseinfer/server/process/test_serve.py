"""Ends of processes: every client learns of them, nothing is left running."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import socket
from pathlib import Path
from typing import Any

import psutil
import pynvml
import pytest
import torch

from roseinfer.server.openai.large_bodies import LARGE
from tests.roseinfer.conftest import make_llama
from tests.roseinfer.server.clients import ask, first_chunk, read_all, wait_for
from tests.roseinfer.server.conftest import ENGINES

pytestmark = pytest.mark.integration

TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two GPUs")
#: By so many bytes the used memory of a GPU may differ; a process takes hundreds of MiB.
MARGIN = 64 << 20


def refuses(server: Any) -> bool:
    """Return whether it takes no new client."""
    try:
        socket.create_connection(("127.0.0.1", server.port), timeout=5).close()
    except ConnectionError:
        return True
    return False


def test_answers_that_end_in_time_are_whole(serve: Any, fake: Any) -> None:
    """Streams and whole ones on both front ends; new clients are refused meanwhile. The engine stands still
    until they are, so that no answer ends before."""
    server = serve("--frontend-processes", "2", "--grace-seconds", "60", **fake)
    first = ask(server, 0, tokens=200)
    first_chunk(first)
    server.engine.suspend()
    clients = [first, *(ask(server, index, stream=index % 4 < 2, tokens=200) for index in range(1, 8))]
    assert wait_for(lambda: server.load()["inflight"] == 8)
    server.process.send_signal(signal.SIGTERM)
    assert wait_for(lambda: refuses(server))
    server.engine.resume()
    for index, client in enumerate(clients):
        answer = read_all(client)
        if index % 4 < 2:
            assert b'"finish_reason":"length"' in answer and b"[DONE]" in answer and b"error" not in answer
        else:
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert json.loads(body)["usage"]["completion_tokens"] == 200
    assert server.ended() and server.process.returncode == 0


@pytest.mark.parametrize("signals", [1, 2])
def test_answers_that_do_not_are_told(serve: Any, fake: Any, signals: int) -> None:
    """At the end of their time, or at a second signal, which ends this process's at once. With a stopped
    engine nothing ends by itself."""
    options = ("--grace-seconds", "0.5" if signals == 1 else "600", "--frontend-processes", str(3 - signals))
    server = serve(*options, **fake)
    clients = [ask(server, index, stream=index % 4 < 2) for index in range(4)]
    first_chunk(clients[0])
    first_chunk(clients[1])
    assert wait_for(lambda: server.load()["inflight"] == 4)
    server.engine.suspend()
    for _ in range(signals):
        server.process.send_signal(signal.SIGTERM)
        assert wait_for(lambda: refuses(server))  # two signals that wait would be one
    for index, client in enumerate(clients):
        answer = read_all(client)
        if index % 4 < 2:
            assert b'"message":"the server is stopping"' in answer
            assert answer.endswith(b"[DONE]\n\n\r\n0\r\n\r\n")
        else:
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert json.loads(body)["error"]["type"] == "server_error"
    assert server.ended() and server.process.returncode == 0
    assert not [line for line in server.log if "Traceback" in line]


def test_two_front_ends(serve: Any, fake: Any) -> None:
    """Whose engine stands still for a while, until all get signals."""
    server = serve("--frontend-processes", "2", "--grace-seconds", "60", "--stall-seconds", "1", **fake)
    an_engine_that_stands_still(server)
    a_signal_to_every_process(server)


def a_signal_to_every_process(server: Any) -> None:
    """A service manager sends SIGTERM, and some shells SIGINT: the parent leads. One of them reads large
    bodies."""
    large = b'{"prompt": [1], "max_tokens": 1}'.ljust(LARGE + 1)
    asking = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)

    def status() -> int:
        asking.request("POST", "/v1/completions", large, {"content-type": "application/json"})
        response = asking.getresponse()
        response.read()
        return response.status

    with contextlib.closing(asking):
        assert status() == 200
        clients = [ask(server, index, tokens=400) for index in range(2)]
        for client in clients:
            first_chunk(client)
        below = psutil.Process(server.process.pid).children(recursive=True)
        assert len(below) == len(server.below) + 1
        for number in (signal.SIGTERM, signal.SIGINT):
            for process in below:
                process.send_signal(number)
            assert status() == 200
        server.process.send_signal(signal.SIGINT)
        for client in clients:
            assert b'"finish_reason":"length"' in read_all(client)
    assert server.ended() and server.process.returncode == 0


def test_nobody_is_waited_for_before_the_first_client(launch: Any) -> None:
    """While the engine loads, no front end has an answer that could use the time."""
    process = launch("--frontend-processes", "2", "--grace-seconds", "600")
    parent = psutil.Process(process.pid)

    def engines() -> list[psutil.Process]:
        return [child for child in parent.children() if ENGINES[0] in child.cmdline()]

    def takes_signals() -> bool:
        (caught,) = re.findall(r"SigCgt:\t(\w+)", Path(f"/proc/{process.pid}/status").read_text())
        return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)

    assert wait_for(engines)
    engines()[0].suspend()
    assert wait_for(takes_signals)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def an_engine_that_stands_still(server: Any) -> None:
    """Everything is answered within seconds, from what was known last or with an error; health fails, in all
    front ends, and recovers."""
    routes = ("/health", "/live", "/livez", "/ready", "/readyz")
    assert all(server.request(path).status == 200 for path in routes)
    assert server.load()["running"] == 0
    assert server.request("/metrics").status == 200
    clients = [ask(server, index, stream=index < 2) for index in range(4)]
    first_chunk(clients[0])
    first_chunk(clients[1])
    server.engine.suspend()
    for client in clients:
        client.shutdown(socket.SHUT_WR)  # the server closes after the answer
        assert b"the engine does not answer" in read_all(client)
    for _ in range(4):
        assert [server.request(path).status for path in routes] == [503] * 5
        assert server.complete([1, 2], max_tokens=1).status == 503
        assert b"roseinfer_engine_silent 1.0" in server.request("/metrics").body
        assert server.request("/server_info").status == 200
    server.engine.resume()
    assert wait_for(lambda: [server.request("/health").status for _ in range(4)] == [200] * 4)
    assert server.complete([1, 2], max_tokens=1).status == 200
    assert server.becomes_idle()


def gpu_memory() -> list[int]:
    """Used bytes of each GPU."""
    if not torch.cuda.is_available():
        return []
    pynvml.nvmlInit()
    gpus = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    return [pynvml.nvmlDeviceGetMemoryInfo(gpu).used for gpu in gpus]


def shared_memory() -> set[Path]:
    return {*Path("/dev/shm").iterdir()}


def kill_engine(server: Any, rank: psutil.Process) -> None:
    server.engine.kill()


def kill(server: Any, rank: psutil.Process) -> None:
    rank.kill()


def suspend(server: Any, rank: psutil.Process) -> None:
    rank.suspend()


def starve(server: Any, rank: psutil.Process) -> None:
    """The logits of 256 tokens of a prompt take 25 MiB, and it gets 16 more than it has: enough for what else
    it computes, which oneDNN would not report as a lack of memory."""
    most = rank.memory_info().vms + (16 << 20)
    rank.rlimit(psutil.RLIMIT_AS, (most, most))
    with ask(server, 1, prompt=[2] * 900, tokens=1, echo=True, logprobs=1) as client:
        read_all(client)


ENGINE_KILLED = (kill_engine, r"the engine process has ended \(killed by SIGKILL\)")
KILLED = (kill, r"rank 1 of the engine has ended \(killed by SIGKILL\)")
HUNG = (suspend, r"waited 1 s for another rank of the engine \(rank 1 is stopped\)")
STARVED = (starve, r"rank 1 of the engine has ended \(exit code 2\): not enough memory: ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "fault", "why"),
    [
        pytest.param("cpu", *ENGINE_KILLED, id="cpu-engine-killed"),
        pytest.param("cpu", *KILLED, id="cpu-killed"),
        pytest.param("cpu", *HUNG, id="cpu-hung"),
        pytest.param("cpu", *STARVED, id="cpu-without-memory"),
        pytest.param("cuda", *KILLED, id="cuda-killed", marks=TWO_GPUS),
        pytest.param("cuda", *HUNG, id="cuda-hung", marks=TWO_GPUS),
    ],
)
def test_a_rank_lost(serve, tmp_path, device, fault, why):
    """Unfinished answers end with an error. An engine that has lost one of its processes ends, says which and
    how, and leaves nothing: the memory of steps has no name and goes with the last process that has it."""
    folder = make_llama(tmp_path / "model", "qwen3") if device == "cuda" else None
    (tmp_path / "left").mkdir()
    names, used = shared_memory(), gpu_memory()
    server = serve(
        "--tensor-parallel-size", "2", "--rank-timeout-s", "1" if fault is suspend else "30",
        "--device", device, "--grace-seconds", "0",
        folder=folder, environment={"TMPDIR": str(tmp_path / "left")},
    )  # fmt: skip
    stream, whole = ask(server, 0), ask(server, 1, stream=False)
    first_chunk(stream)
    (rank,) = server.engine.children()
    assert any("memfd:roseinfer-step" in part.path for part in rank.memory_maps())
    fault(server, rank)
    rest = read_all(stream)
    assert b'"type":"server_error"' in rest and b"[DONE]" in rest
    head, _, body = read_all(whole).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ") and json.loads(body)["error"]["type"] == "server_error"
    assert server.ended() and not psutil.wait_procs([rank], 60)[1]
    assert server.process.returncode == 1
    assert any(re.search(why, line) for line in server.log), server.log
    assert not list((tmp_path / "left").iterdir())
    # other processes may come and go, and the driver frees memory a little later
    assert wait_for(lambda: not shared_memory() - names)
    assert wait_for(lambda: all(n <= u + MARGIN for n, u in zip(gpu_memory(), used, strict=True)))


def test_ctrl_c(serve: Any, fake: Any) -> None:
    """With unfinished answers; the engine, which Ctrl-C does not reach, ends too."""
    server = serve(**fake)
    clients = [ask(server, index, tokens=150) for index in range(4)]
    first_chunk(clients[0])
    server.process.send_signal(signal.SIGINT)
    assert server.ended()
    assert server.process.returncode == 0
    assert not [line for line in server.log if "Traceback" in line]


def test_server_killed(serve: Any, fake: Any) -> None:
    server = serve("--frontend-processes", "2", **fake)
    first_chunk(ask(server, 0))
    server.process.kill()
    assert server.ended()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ended_while_starting(launch: Any, fake: Any, number: signal.Signals) -> None:
    process = launch(**fake)
    parent = psutil.Process(process.pid)
    while not (children := parent.children()):
        assert process.poll() is None
    process.send_signal(number)
    process.wait(60)
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not [child for child in alive if child.status() != psutil.STATUS_ZOMBIE]
