"""Whatever an engine or its surroundings do, nothing is left behind and the error says what happened."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import psutil
import pytest

from harness.engines.process import engine_server
from harness.engines.process.engine_server import EngineServer, Launch, inherited, listeners
from harness.engines.selfreport import SelfReport
from harness.engines.server_pages import get
from harness.errors import EngineError
from harness.schema.fairness import EngineFact
from harness.schema.run_info import LaunchRecord

RECORD = LaunchRecord(engine="vllm", label="vLLM", version="1")


def test_is_ready_inside_and_gone_after(fake, monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "0")

    def facts(report: SelfReport) -> dict[str, EngineFact]:
        return report.from_log("max_batch", r"batch: (\d+)") | report.from_page(
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


def test_one_that_ignores_the_signal_is_killed(fake):
    with EngineServer(fake.launch("stubborn"), RECORD, fake.log):
        assert len(fake.left()) == 3
    assert not [pid for pid in fake.pids if psutil.pid_exists(pid)]  # not as zombies either


def test_one_that_exits_at_once_shows_its_last_lines(fake):
    with (
        pytest.raises(EngineError, match=r"(?s)before it was ready with exit code 3.*no such weights"),
        EngineServer(fake.launch("exits"), RECORD, fake.log),
    ):
        pass
    assert fake.left() == []


def test_one_that_never_gets_ready_is_given_up(fake):
    with (
        pytest.raises(EngineError, match=r"(?s)not ready after 1 s.*loading, for ever"),
        EngineServer(fake.launch("deaf", timeout_s=1.0), RECORD, fake.log),
    ):
        pass
    assert fake.left() == []


def test_one_whose_health_is_elsewhere_says_what_it_answers(fake):
    with (
        pytest.raises(EngineError, match=r"not ready after 3 s \(GET /health answers 404\)") as caught,
        EngineServer(fake.launch("elsewhere", timeout_s=3.0), RECORD, fake.log),
    ):
        pass
    assert "perhaps ready_path /health" in str(caught.value.hint)


def test_a_command_that_does_not_exist(fake):
    with (
        pytest.raises(EngineError, match="cannot be started"),
        EngineServer(lambda port: Launch(("/no/such/python",), "model"), RECORD, fake.log),
    ):
        pass


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


def test_the_body_fails(fake):
    with pytest.raises(KeyboardInterrupt), EngineServer(fake.launch(), RECORD, fake.log):
        raise KeyboardInterrupt
    assert fake.left() == []


def test_a_port_taken_in_between_is_replaced(fake):
    taken = []

    def launch(port: int) -> Launch:
        if not taken:
            taken.append(socket.create_server(("127.0.0.1", port)))
        return fake.launch()(port)

    with EngineServer(launch, RECORD, fake.log) as server:
        assert server.target.port != taken[0].getsockname()[1]
    taken[0].close()
    assert fake.left() == []


class _Foreign(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


def test_another_server_on_the_port_is_not_taken_for_the_engine(fake):
    foreign: list[HTTPServer] = []

    def launch(port: int) -> Launch:
        if foreign:
            return fake.launch()(port)
        foreign.append(HTTPServer(("127.0.0.1", port), _Foreign))
        threading.Thread(target=foreign[0].serve_forever, args=(0.01,), daemon=True).start()
        return fake.launch("deaf")(port)

    with EngineServer(launch, RECORD, fake.log) as server:
        assert server.target.port != foreign[0].server_port
    foreign[0].shutdown()
    foreign[0].server_close()
    assert fake.left() == []


HARNESS = """
import sys, time
from pathlib import Path
from harness.engines.process.engine_server import EngineServer, Launch
from harness.schema.run_info import LaunchRecord
program, pids, log = sys.argv[1:]
def launch(port):
    return Launch((sys.executable, program, str(port), pids, "stubborn"), "model", grace_s=0.5)
with EngineServer(launch, LaunchRecord(engine="vllm", label="vLLM"), Path(log)) as server:
    print(server._process._guard.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_ends_the_harness_ends_the_engine(fake, number):
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(HARNESS),
            str(fake.program),
            str(fake.pid_file),
            str(fake.log),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as harness:
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
    environment = {
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "SGLANG_LOG_GC": "1",
        "VLLM_API_KEY": "abc",
        "HF_TOKEN": "hf_123",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "4",
        "LD_PRELOAD": "libjemalloc.so",
        "HOME": "/home/someone",
        "AWS_SECRET_ACCESS_KEY": "abc",
    }
    recorded = inherited(environment, {"OMP_NUM_THREADS": "1", "NCCL_DEBUG": "INFO"}, ("VLLM_",))
    assert recorded == {
        "HF_HUB_OFFLINE": "1",
        "LD_PRELOAD": "libjemalloc.so",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
    }
