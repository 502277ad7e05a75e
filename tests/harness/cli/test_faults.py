"""A signal ends a command, whatever it waits for."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

STUCK = """
import time
from harness.cli import faults
faults.handle_interrupts()
{before}
while True:
    try:
        print("ready", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        pass
"""


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("before", "presses"), [("", 1), ("faults.save_first()", 2)])
def test_a_signal_ends_what_does_not_end(number: signal.Signals, before: str, presses: int) -> None:
    """While a run is saved, the second one."""
    code = STUCK.format(before=before)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for _ in range(presses):
            assert process.stdout.readline()
            process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and err.endswith("bench: interrupted\n")
