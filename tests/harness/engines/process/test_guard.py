"""The process between the harness and an engine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from harness.engines.process import guard
from harness.engines.process.tree import Guarded

pytestmark = pytest.mark.integration


def test_an_engine_starts_where_the_kernel_refuses_its_niceness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As the kernel does for users who are not root and start two sessions within 100 ms."""
    monkeypatch.setattr(guard, "AUTOGROUP", tmp_path)  # a folder cannot be written to
    order = guard.Order(
        argv=[sys.executable, "-c", "import os; print(os.nice(0))"], env=dict(os.environ),
        log=str(tmp_path / "log"), cpus=None, niceness=7, stop_signal=2, grace_s=1.0,
    )  # fmt: skip
    niceness = os.nice(0)
    assert guard.start(order).wait() == 0
    assert int((tmp_path / "log").read_text()) == min(niceness + 7, 19)


def test_an_engine_gives_way_and_does_not_inherit_that_the_guard_ignores_interrupts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With SIGINT ignored it would be killed at the end of its grace period."""
    monkeypatch.setattr(guard, "SHARING_NICENESS", 7)
    asks = "import os, signal as s; print(s.getsignal(s.SIGINT) is s.default_int_handler, os.nice(0))"
    log = tmp_path / "log"
    tree = Guarded("it", [sys.executable, "-c", asks], os.environ, log)
    try:
        assert tree.wait(60) == 0
    finally:
        tree.stop()
    assert log.read_text() == f"True {min(os.nice(0) + 7, 19)}\n"
