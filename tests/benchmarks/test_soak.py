"""`benchmarks/soak.py` with few clients."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.soak import WAYS_TO_LEAVE

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


def test_who_leaves_leaves_nothing_and_who_stays_is_answered() -> None:
    """In two front ends, with too few blocks for all and with shared ones; in each round by every way to
    leave."""
    assert len(WAYS_TO_LEAVE) < 10
    small = "--rounds 2 --clients 10 --left-tokens 120 --bound-mib 100 --rest 0"
    server = "--frontend-processes 2 --prefix-cache --kv-tokens 1024 --threads 1 --no-warmup"
    argv = [sys.executable, "-m", "benchmarks.soak", *small.split(), "--", *server.split()]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=240, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    counted = dict(line.split() for line in done.stdout.splitlines() if len(line.split()) == 2)
    assert float(counted["requests"]) >= 20 and float(counted["discarded"]) >= 10
    assert "nothing leaked" in done.stdout
