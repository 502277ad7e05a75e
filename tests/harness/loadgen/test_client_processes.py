"""Client processes: they die with their parent, fail loudly, and are refused what cannot work."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import psutil
import pytest
import uvloop

from harness.errors import BenchError, UsageError
from harness.loadgen import client_main
from harness.loadgen.http import request_head
from harness.loadgen.load_plan import LoadPlan, Progress, Target, WireRequest
from harness.loadgen.response_file import ResponseWriter, StoredResponses
from harness.loadgen.run_load import run_load

from .conftest import make_plan

pytestmark = pytest.mark.integration

_STALL = [{"stall_after": 0}] * 4


def workers_of(pid: int) -> list[psutil.Process]:
    children = psutil.Process(pid).children(recursive=True)
    alive = [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in alive if "harness.loadgen.client_main" in child.cmdline()]


def test_a_client_that_crashes_is_an_error_and_takes_the_others_with_it(shared_mock: Any) -> None:
    found: list[psutil.Process] = []

    def crash_one(_: Progress) -> None:
        if not found:
            found.extend(workers_of(os.getpid()))
            found[0].kill()

    with pytest.raises(BenchError, match=r"client process \d ended with code -9"):
        run_load(make_plan(shared_mock, _STALL), clients=2, progress=crash_one, start_delay_s=0.05)
    assert len(found) == 2
    assert not any(process.is_running() for process in found)


def test_a_full_disk_is_an_error(shared_mock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full")
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: full.open("r+b", buffering=0))
    with pytest.raises(BenchError, match=r"the answers cannot be kept: .* No space left on device"):
        run_load(make_plan(shared_mock, [{}]), start_delay_s=0.05)


def test_answers_that_end_while_others_are_written_are_kept(shared_mock, monkeypatch, tmp_path):
    plan = make_plan(shared_mock, [{}, {}], every_s=2 * client_main._PROGRESS_S)
    heads = [request_head(plan.target)]
    file, (stdin, _) = os.open(tmp_path / "responses", os.O_RDWR | os.O_CREAT), os.pipe()
    last, write = threading.Event(), ResponseWriter._write

    def wait_for_the_last(writer: ResponseWriter, data: bytearray) -> None:
        assert last.wait(20)
        write(writer, data)

    async def measure() -> None:
        work = client_main.WorkerPlan(0, plan, [["127.0.0.1"]])
        run = client_main._Run(work, heads, os.dup(file), stdin, os.open(os.devnull, os.O_WRONLY))
        finish = run._finished.set

        def end() -> None:
            finish()
            last.set()

        monkeypatch.setattr(run._finished, "set", end)
        await run.measure(monotonic())

    monkeypatch.setattr(ResponseWriter, "_write", wait_for_the_last)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measure())
    assert [response.index for response in StoredResponses([file])] == [0, 1]


def test_an_interrupt_ends_the_clients(shared_mock: Any) -> None:
    found: list[psutil.Process] = []

    def interrupt(_: Progress) -> None:
        found.extend(workers_of(os.getpid()))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_load(make_plan(shared_mock, _STALL), clients=2, progress=interrupt, start_delay_s=0.05)
    assert len(found) == 2
    assert not any(process.is_running() for process in found)


_PARENT = """
import sys, msgspec
from harness.loadgen.load_plan import LoadPlan
from harness.loadgen.run_load import run_load
plan = msgspec.json.decode(sys.argv[1], type=LoadPlan)
run_load(plan, clients=2, progress=lambda _: print("started", flush=True), start_delay_s=0.05)
"""


def test_clients_die_with_a_parent_that_is_killed(shared_mock: Any) -> None:
    plan = msgspec.json.encode(make_plan(shared_mock, _STALL)).decode()
    with subprocess.Popen([sys.executable, "-c", _PARENT, plan], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        workers = workers_of(parent.pid)
        parent.send_signal(signal.SIGKILL)
    assert len(workers) == 2
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive


def test_clients_stay_on_their_cores(shared_mock: Any) -> None:
    core = min(os.sched_getaffinity(0))
    kept: list[list[int]] = []

    def look(_: Progress) -> None:
        kept.extend(worker.cpu_affinity() for worker in workers_of(os.getpid()))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_load(make_plan(shared_mock, _STALL), clients=2, cpus=[core], progress=look, start_delay_s=0.05)
    assert kept == [[core], [core]]


_LIMITED = """
import resource, sys
from harness.errors import UsageError
from harness.loadgen.load_plan import LoadPlan, Target, WireRequest
from harness.loadgen.run_load import run_load
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
target = Target("127.0.0.1", 1, "/")
plan = LoadPlan(target, [WireRequest(i, None, b"") for i in range(100)], concurrency=100)
try:
    run_load(plan)
except UsageError as error:
    sys.exit(str(error))
"""


def test_too_few_open_files_are_named_before_anything_is_sent() -> None:
    done = subprocess.run([sys.executable, "-c", _LIMITED], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "may need 164 open files and is allowed 128" in done.stderr
    assert "ulimit -n 164" in done.stderr


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        (Target("no-such-host.invalid", 80, "/"), {}, "no-such-host.invalid"),
        (Target("127.0.0.1", 80, "/"), {"clients": 0}, "0 client processes"),
        (Target("127.0.0.1", 80, "/"), {"cpus": [100_000]}, "CPU 100000"),
        (Target("127.0.0.1", 80, "/", {"Authorization": "Bearer a\nb"}), {}, "Authorization"),
    ],
)
def test_what_cannot_work_is_refused(target: Target, options: dict[str, Any], message: str) -> None:
    plan = LoadPlan(target, [WireRequest(0, 0.0, b"{}")])
    with pytest.raises(UsageError, match=message):
        run_load(plan, **options)


def test_an_empty_load_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing to send"):
        run_load(LoadPlan(Target("127.0.0.1", 80, "/"), []))
