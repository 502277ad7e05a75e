"""Front ends and engines as processes: what they inherit, connections of each, several behind one port."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from roseinfer.request.params import SamplingParams
from roseinfer.server.metrics.counters import Counters
from roseinfer.server.process.front_ends import Dispatcher
from roseinfer.server.process.launch import HUGE_PAGES, KERNELS_KEPT, SPIN, environment
from tests.roseinfer.server.clients import ask, first_chunk, in_loop, leave, read_all, wait_for
from tests.roseinfer.server.conftest import Serving

pytestmark = pytest.mark.integration


@pytest.mark.slow
def test_two_replicas(serve: Any, text_model: Any) -> None:
    """With prefix caches behind two front ends, until one is killed."""
    two = serve(
        *("--data-parallel-size", "2", "--prefix-cache", "--frontend-processes", "2", "--grace-seconds", "60")
    )
    tokens_equal_those_of_one_engine_and_both_are_used(two, text_model)
    a_prefix_goes_to_where_it_is(two)
    what_is_asked_of_all(two)
    clients_leave(two)
    one_killed(two)


def by_replica(server: Serving, name: str) -> list[float]:
    """The values of a metric, by replica."""
    families = text_string_to_metric_families(server.request("/metrics").body.decode())
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    assert [sample.labels for sample in samples] == [{"replica": "0"}, {"replica": "1"}]
    return [sample.value for sample in samples]


def rises(server: Serving, name: str, before: list[float], total: int) -> list[float]:
    """Return the growth of a counter, once it is `total` in all: answers count after their last token."""
    assert wait_for(lambda: sum(by_replica(server, name)) - sum(before) >= total)
    return [b - a for a, b in zip(before, by_replica(server, name), strict=True)]


def tokens_equal_those_of_one_engine_and_both_are_used(two: Serving, text_model: Any) -> None:
    prompts = [[7 * index % 50 + 1] * (index + 3) for index in range(12)]
    expected = text_model.llm.generate(prompts, SamplingParams(8, ignore_eos=True))
    before = by_replica(two, "roseinfer_requests_total")

    def answer(prompt: list[int]) -> list[int]:
        reply = two.complete(prompt, max_tokens=8, ignore_eos=True, return_token_ids=True)
        tokens: list[int] = reply.json["choices"][0]["token_ids"]
        return tokens

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(answer, prompts)) == expected
    used = rises(two, "roseinfer_requests_total", before, len(prompts))
    assert sum(used) == len(prompts) and min(used) > 0
    assert two.becomes_idle()


def a_prefix_goes_to_where_it_is(two: Serving) -> None:
    """From whichever front end; after a flush nobody has it."""
    assert two.request("/flush_cache", b"", headers={"content-type": "application/json"}).status == 200
    shared = [3, 1, 4, 1, 5, 9, 2, 6] * 12
    before = by_replica(two, "roseinfer_requests_total")
    cached = []
    for index in range(6):
        reply = two.complete([*shared, index + 1], max_tokens=2, ignore_eos=True)
        cached.append(reply.json["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert two.becomes_idle()
    assert cached == [0] + [len(shared)] * 5
    assert sorted(rises(two, "roseinfer_requests_total", before, 6)) == [0, 6]


def what_is_asked_of_all(two: Serving) -> None:
    assert [two.request(path).status for path in ("/health", "/ready", "/integrity")] == [200] * 3
    info = two.request("/server_info").json
    assert info["data_parallel_size"] == 2 and info["load"]["running"] == 0
    assert by_replica(two, "roseinfer_inflight") == [0, 0]
    assert "roseinfer_tokenize_seconds_count " in two.request("/metrics").body.decode()


def clients_leave(two: Serving) -> None:
    """Nothing is left in either replica."""
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda index: leave(two, index), range(40)))
    assert two.becomes_idle()


def one_killed(server: Serving) -> None:
    """Answers of its replica end with an error, those of the other are whole; then the server ends."""
    clients = []
    for index in range(2):  # each is counted before the other front end chooses
        clients.append(ask(server, index, tokens=500))
        first_chunk(clients[-1])
    assert by_replica(server, "roseinfer_running") == [1, 1]
    server.engines[1].kill()
    answers = [read_all(client) for client in clients]
    assert sorted(b"the engine has stopped" in answer for answer in answers) == [False, True]
    assert sum(b'"finish_reason":"length"' in answer for answer in answers) == 1
    assert all(b"[DONE]" in answer for answer in answers)
    assert server.ended() and server.process.returncode == 1
    assert "replica 1 of the engine has ended (killed by SIGKILL)" in server.log[-1], server.log


def test_huge_pages_and_bounded_spinning_unless_the_user_says_otherwise():
    assert environment({"PATH": "/bin"}) == {"PATH": "/bin", **HUGE_PAGES, **KERNELS_KEPT, **SPIN}


@pytest.mark.parametrize(
    ("inherited", "absent"),
    [
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}, set()),
        ({"GOMP_SPINCOUNT": "5"}, set()),
        ({"LRU_CACHE_CAPACITY": "1024"}, set()),
        ({"OMP_WAIT_POLICY": "passive"}, {"GOMP_SPINCOUNT"}),
    ],
)
def test_the_users_word_wins(inherited: dict[str, str], absent: set[str]):
    variables = environment(inherited)
    assert inherited.items() <= variables.items()
    added = HUGE_PAGES.keys() | KERNELS_KEPT.keys() | SPIN.keys()
    assert variables.keys() == (inherited.keys() | added) - absent


class Full(socket.socket):
    """A listener of a process that has no file descriptor left."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.asked_again = asyncio.Event()

    def accept(self) -> tuple[socket.socket, object]:
        self.calls += 1
        if self.calls > 1:
            self.asked_again.set()
        raise OSError(errno.EMFILE, "too many open files")


@in_loop
async def test_it_tries_again_until_it_is_stopped() -> None:
    with Full() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        dispatcher = Dispatcher(listener, [], Counters.create(1), lambda sock: None, retry=0.05)
        with socket.create_connection(listener.getsockname()):
            dispatcher.start()
            await listener.asked_again.wait()
            dispatcher.stop()
            calls = listener.calls
            await asyncio.sleep(0.2)
            assert listener.calls == calls


@in_loop
async def test_a_front_end_that_takes_no_connection_is_passed_over() -> None:
    """The next of those with the fewest open connections gets it."""
    adopted: list[socket.socket] = []
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    (stuck, _), (other, front_end) = pairs
    for handover, _ in pairs:
        handover.setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            stuck.send(b"c")
    with ExitStack() as stack, socket.create_server(("127.0.0.1", 0)) as listener:
        for sock in chain(*pairs):
            stack.enter_context(sock)
        dispatcher = Dispatcher(listener, [stuck, other], Counters.create(3), adopted.append)
        for number in range(4):  # to 0, other, 0, other
            stack.enter_context(socket.create_connection(listener.getsockname()))
            dispatcher.accept()
            assert len(adopted) == 1 + number // 2
        for _ in range(2):
            _, descriptors, _, _ = socket.recv_fds(front_end, 1, 1)
            assert len(descriptors) == 1
            os.close(*descriptors)
        for sock in adopted:
            sock.close()


def sockets(process: psutil.Process) -> int:
    """The sockets that a process has open."""
    count = 0
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            count += str(link.readlink()).startswith("socket:")
    return count


def test_hundreds_of_clients_leave(serving: Any, text_model: Any) -> None:
    """Their whole answers would have 270,000 tokens."""
    with ThreadPoolExecutor(50) as pool:
        list(pool.map(lambda index: leave(serving, index), range(300)))
    assert serving.becomes_idle()
    body = serving.complete(text_model.prompt, max_tokens=6, ignore_eos=True, return_token_ids=True).json
    assert body["choices"][0]["token_ids"] == text_model.answer[:6]


def test_load_shows_what_runs(serving: Any) -> None:
    clients = [ask(serving, index) for index in range(3)]
    for client in clients:
        first_chunk(client)
    load = serving.load()
    assert load["running"] == 3 and load["waiting"] == 0 and load["inflight"] == 3
    assert 0 < load["kv_usage"] < 1
    assert "in flight" in serving.request("/integrity").json["error"]["message"]
    for client in clients:
        client.close()
    assert serving.becomes_idle()


def test_connections_are_shared_evenly_until_a_front_end_is_killed(serve: Any, fake: Any) -> None:
    """Kept connections count as well, and those that have closed do not. A server that answers only some of
    its clients ends."""
    server = serve("--frontend-processes", "3", **fake)
    processes = [psutil.Process(server.process.pid), *server.front_ends]
    before = [*map(sockets, processes)]

    def opened() -> list[int]:
        """Connections of each process."""
        return [sockets(process) - count for process, count in zip(processes, before, strict=True)]

    clients = [ask(server, index, tokens=2) for index in range(9)]
    for client in clients:
        first_chunk(client)
    assert wait_for(lambda: opened() == [3, 3, 3])
    for client in clients[:3]:
        client.close()
    assert wait_for(lambda: opened() == [2, 2, 2])
    clients += [ask(server, index) for index in range(3)]
    for client in clients[9:]:
        first_chunk(client)
    assert wait_for(lambda: opened() == [3, 3, 3])

    server.front_ends[1].kill()
    assert server.ended()
    assert server.process.returncode == 1
    assert "front end 2" in server.log[-1] and "SIGKILL" in server.log[-1]
