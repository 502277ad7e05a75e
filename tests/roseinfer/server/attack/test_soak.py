"""Thousands of clients, half of which leave."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.roseinfer.server.attack.conftest import SECONDS

pytestmark = [pytest.mark.slow, pytest.mark.integration]

ROOT = Path(__file__).parents[4]


def test_soak(tried: Callable[[int], None]) -> None:
    """Clients that leave in eight ways, and that stay: right answers, flat memory, every block free."""
    clients = max(100, int(10 * float(os.environ[SECONDS])))
    command = [
        sys.executable, "-m", "benchmarks.soak", "--rounds", "7", "--warm", "4", "--clients", str(clients),
        "--bound-mib", "24",
        "--", "--frontend-processes", "2", "--prefix-cache", "--kv-tokens", "2048", "--threads", "1",
    ]  # fmt: skip
    soak = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=ROOT)
    assert soak.returncode == 0, soak.stdout + soak.stderr
    requests = re.search(r"^requests (\S+)", soak.stdout, re.MULTILINE)
    tried(int(float(requests[1])))
    assert "nothing leaked" in soak.stdout
