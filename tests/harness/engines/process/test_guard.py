"""The process between the harness and an engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from harness.engines.process import guard
from harness.engines.process.guard import Order
from harness.engines.process.tree import Guarded

pytestmark = pytest.mark.integration


def test_an_engine_starts_where_the_kernel_refuses_its_niceness(tmp_path):
    """As the kernel does for users who are not root and start two sessions within 100 ms."""
    asks = [sys.executable, "-c", "import os; print(os.nice(0))"]
    order = Order(asks, os.environ, str(tmp_path / "log"), niceness=7)
    niceness = os.nice(0)
    assert guard.start(order, autogroup=tmp_path).wait() == 0  # a folder cannot be written to
    assert int((tmp_path / "log").read_text()) == min(niceness + 7, 19)


def test_an_engine_gives_way_and_does_not_inherit_that_the_guard_ignores_interrupts(tmp_path, monkeypatch):
    """With SIGINT ignored it would be killed at the end of its grace period."""
    monkeypatch.setattr(Guarded, "_sweep", lambda tree: pytest.fail("the guard has reported the survivors"))
    asks = "import os, signal as s; print(s.getsignal(s.SIGINT) is s.default_int_handler, os.nice(0))"
    log = tmp_path / "log"
    tree = Guarded("it", Order([sys.executable, "-c", asks], os.environ, str(log), niceness=7))
    assert tree.finish(60) == 0
    assert log.read_text() == f"True {min(os.nice(0) + 7, 19)}\n"


def test_a_guard_that_did_not_run_for_a_while_ends_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the grace period may pass between two looks at the clock."""
    clock = iter([0.0, 2.0, 2.0])
    with subprocess.Popen(["sleep", "600"]) as engine:
        monkeypatch.setattr(time, "monotonic", lambda: next(clock))
        try:
            survivors = guard._reap(engine, until=1.0)
        finally:
            engine.kill()
    assert engine.pid in [process.pid for process in survivors]


@pytest.mark.parametrize("blocked", [signal.SIGINT, signal.SIGTERM])
def test_an_engine_that_is_started_while_a_signal_is_blocked_ends_politely(tmp_path, blocked):
    """As by a thread of Ray: an engine that inherited the mask would be killed at the end of its grace."""
    waits = (
        "import signal as s, sys\n"
        "for number in (s.SIGINT, s.SIGTERM): s.signal(number, lambda *_: sys.exit(print('asked to end')))\n"
        "print(len(s.pthread_sigmask(s.SIG_BLOCK, [])), 'blocked', flush=True)\n"
        "while True: s.pause()\n"
    )
    log = tmp_path / "log"
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {blocked})
    try:
        order = Order([sys.executable, "-c", waits], os.environ, str(log), stop_signal=blocked)
        tree = Guarded("it", order)
        while "blocked" not in log.read_text():
            assert tree.wait(0.05) is None
        tree.stop()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert log.read_text() == "0 blocked\nasked to end\n"
