"""Whatever an engine or its surroundings do, nothing is left behind and the error says what happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler

import psutil
import pytest

from harness.engines.base import Launch
from harness.engines.process import engine_server
from harness.engines.process.engine_server import EngineServer, inherited, listeners
from harness.engines.selfreport import SelfReport
from harness.engines.server_pages import get
from harness.errors import EngineError
from harness.schema.fairness import EngineFact
from harness.schema.run_info import LaunchRecord

RECORD = LaunchRecord(engine="vllm", label="vLLM", version="1")


def test_is_ready_inside_and_gone_after(fake, monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "0")

    def facts(report: SelfReport) -> dict[str, EngineFact]:
        return report.from_log({"max_batch": r"batch: (\d+)"}) | report.from_page(
            "/info", {"threads": "threads"}
        )

    with EngineServer(fake.launch(), RECORD, fake.log, pages=["/info"], facts=facts) as server:
        assert get(server.target, "/health") is not None
        assert sorted(server.pids) == sorted(fake.pids)
        assert len(fake.pids) == 3
        assert server.record.argv[2] == str(server.target.port)
        assert server.record.facts == {
            "max_batch": EngineFact(value=7, source="start-up log"),
            "threads": EngineFact(value=3, source="GET /info"),
            "processes": EngineFact(value=3, source="counted by bench"),
            "http_processes": EngineFact(value=1, source="counted by bench: listening on its port"),
        }
        assert server.record.ready_s > 0
        assert server.record.inherited["NCCL_DEBUG"] == "0"
        server.check()
    assert fake.left() == []


def test_a_process_whose_first_thread_has_ended_is_no_zombie(fake):
    with EngineServer(fake.launch("headless"), RECORD, fake.log) as server:
        assert sorted(server.pids) == sorted(fake.pids)
    assert not [pid for pid in fake.pids if psutil.pid_exists(pid)]


def test_one_that_ignores_the_signal_is_killed_also_where_the_body_fails(fake):
    with pytest.raises(KeyboardInterrupt), EngineServer(fake.launch("stubborn"), RECORD, fake.log):
        assert len(fake.left()) == 3
        raise KeyboardInterrupt
    assert not [pid for pid in fake.pids if psutil.pid_exists(pid)]  # not as zombies either


@pytest.mark.parametrize(
    ("mode", "timeout_s", "fault"),
    [
        ("exits", 30.0, r"before it was ready with exit code 3.*no such weights"),
        ("deaf", 1.0, r"not ready after 1 s: loading, for ever"),
        ("elsewhere", 3.0, r"not ready after 3 s \(GET /health answers 404\).*perhaps ready_path /health"),
        ("missing", 1.0, r"cannot be started.*/no/such/python"),
    ],
)
def test_one_that_does_not_serve_says_why(fake, mode: str, timeout_s: float, fault: str):
    server = EngineServer(fake.launch(mode, timeout_s), RECORD, fake.log)
    with pytest.raises(EngineError, match=f"(?s){fault}"), server:
        pass
    assert fake.left() == []


def test_sigkill_of_the_engine_is_noticed(fake):
    with EngineServer(fake.launch(), RECORD, fake.log) as server:
        processes = [psutil.Process(pid) for pid in server.pids]
        os.kill(fake.pids[0], signal.SIGKILL)
        psutil.wait_procs(processes, timeout=60)
        with pytest.raises(EngineError, match="while it was in use with SIGKILL"):
            while True:
                server.check()
    assert fake.left() == []


def test_a_server_that_is_about_to_end_is_waited_for(fake, monkeypatch):
    def count(pids: list[int], port: int) -> int | None:
        found = listeners(pids, port)
        if not found:
            fake.pid_file.with_name("pids.leave").touch()
        return found

    with EngineServer(fake.launch(), RECORD, fake.log) as server:
        monkeypatch.setattr(engine_server, "listeners", count)
        server.check()
        assert get(server.target, "/end") is not None
        with pytest.raises(EngineError, match="while it was in use with exit code 4"):
            server.check()


@pytest.mark.parametrize("serves", [False, True])
def test_a_port_that_another_server_took_is_replaced(fake, serves: bool):
    """Also where that server answers as the engine would."""
    fake.program.with_name("health").touch()
    handler = partial(SimpleHTTPRequestHandler, directory=str(fake.program.parent))
    others: list[HTTPServer] = []

    def launch(port: int) -> Launch:
        if others:
            return fake.launch()(port)
        others.append(HTTPServer(("127.0.0.1", port), handler, bind_and_activate=False))
        others[0].server_bind()
        if serves:
            others[0].server_activate()
            threading.Thread(target=others[0].serve_forever, args=(0.01,), daemon=True).start()
        return fake.launch("deaf" if serves else "serves")(port)

    with EngineServer(launch, RECORD, fake.log) as server:
        assert server.target.port != others[0].server_port
    if serves:
        others[0].shutdown()
    others[0].server_close()
    assert fake.left() == []


HARNESS = """
import sys, time
from pathlib import Path
from harness.engines.process.engine_server import EngineServer
from harness.engines.base import Launch
from harness.schema.run_info import LaunchRecord
program, pids, log = sys.argv[1:]
def launch(port):
    return Launch((sys.executable, program, str(port), pids, "stubborn"), "model", grace_s=0.5)
with EngineServer(launch, LaunchRecord(engine="vllm", label="vLLM"), Path(log)) as server:
    print(server._process._guard.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])  # SIGTERM ends it as SIGKILL does
def test_a_signal_that_ends_the_harness_ends_the_engine(fake, number):
    argv = [sys.executable, "-c", HARNESS, str(fake.program), str(fake.pid_file), str(fake.log)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as harness:
        guard = psutil.Process(int(harness.stdout.readline()))
        assert len(fake.left()) == 3
        harness.send_signal(number)
        try:
            harness.wait(60)
        finally:
            harness.kill()
        assert fake.left(timeout_s=60) == []
        assert psutil.wait_procs([guard], timeout=60)[1] == []


def test_sigkill_of_the_guard(fake):
    server = EngineServer(fake.launch(), RECORD, fake.log)
    with pytest.raises(EngineError, match="guard"), server:
        server._process._guard.kill()
        server._process._guard.wait()
        server.check()
    assert len(fake.pids) == 3
    assert fake.left(timeout_s=60) == []


def test_what_engines_read_is_recorded_unless_it_was_set_or_is_secret() -> None:
    read = ("HF_HUB_OFFLINE", "LD_PRELOAD", "TOKENIZERS_PARALLELISM", "VLLM_USE_FLASHINFER_SAMPLER")
    others = ("SGLANG_LOG_GC", "VLLM_API_KEY", "HF_TOKEN", "OMP_NUM_THREADS", "HOME", "AWS_SECRET_ACCESS_KEY")
    added = {"OMP_NUM_THREADS": "1", "NCCL_DEBUG": "INFO"}
    assert inherited(dict.fromkeys(others + read, "1"), added, ("VLLM_",)) == dict.fromkeys(read, "1")
