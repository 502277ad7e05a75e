"""A real process tree that behaves like an engine, well or badly."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from harness.engines.base import Launch

# argv: PORT PIDS MODE. It appends the PID of each of its processes to PIDS: itself, a child, and a daemon
# in a session of its own that ignores SIGINT and SIGTERM and whose parent has gone.
PROGRAM = """
import ctypes, http.server, os, signal, sys, threading, time
port, pids, mode = int(sys.argv[1]), sys.argv[2], sys.argv[3]

def note():
    with open(pids, "a") as file:
        file.write(f"{os.getpid()}\\n")

def sleep():
    note()
    while True:
        time.sleep(60)

note()
if mode == "exits":
    print("no such weights: model.safetensors")
    sys.exit(3)
if os.fork() == 0:
    if mode == "headless":  # looks like a zombie from here on, and is none
        threading.Thread(target=sleep).start()
        ctypes.CDLL(None).pthread_exit(None)
    sleep()
if os.fork() == 0:
    os.setsid()
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    if os.fork() == 0:
        sleep()
    os._exit(0)
while len(open(pids).read().split()) < 3:
    time.sleep(0.005)
if mode == "stubborn":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
if mode == "deaf":
    time.sleep(600)

def leave():
    while not os.path.exists(pids + ".leave"):
        time.sleep(0.005)
    os._exit(4)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/end":  # it listens no more, and is there until it may leave
            self.server.socket.close()
            threading.Thread(target=leave).start()
        self.send_response(404 if mode == "elsewhere" else 200)
        self.end_headers()
        self.wfile.write(b'{"threads": 3}')

print("max batch: 7", flush=True)
http.server.HTTPServer.allow_reuse_address = False
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


class FakeEngine:
    """Makes launches of the program and knows every process it ever was."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "engine.py"
        self.program.write_text(PROGRAM)
        self.pid_file = folder / "pids"
        self.pid_file.touch()
        self.log = folder / "logs" / "engine.log"

    def launch(self, mode: str = "serves", timeout_s: float = 30.0) -> Callable[[int], Launch]:
        def at(port: int) -> Launch:
            argv: tuple[str, ...] = (sys.executable, str(self.program), str(port), str(self.pid_file), mode)
            if mode == "missing":
                argv = ("/no/such/python",)
            if mode == "deaf":  # said at once, however long Python takes to start
                argv = ("/bin/sh", "-c", 'echo "loading, for ever"; exec "$@"', "sh", *argv)
            return Launch(argv, "model", ready_timeout_s=timeout_s, grace_s=0.5)

        return at

    @property
    def pids(self) -> list[int]:
        return [int(line) for line in self.pid_file.read_text().split()]

    def left(self, timeout_s: float = 0.0) -> list[int]:
        """Processes that live now, or still live after waiting that long for them to end."""
        until = time.monotonic() + timeout_s
        while (alive := [pid for pid in self.pids if _alive(pid)]) and time.monotonic() < until:
            psutil.wait_procs([psutil.Process(pid) for pid in alive if psutil.pid_exists(pid)], timeout=0.1)
        return alive


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def fake(tmp_path: Path, integration: None) -> FakeEngine:
    return FakeEngine(tmp_path)
