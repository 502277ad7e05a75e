"""The client's wish for short time slices."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

ASK_AND_READ = """
import ctypes
from harness.loadgen import time_slices
time_slices.ask_for_short_slices()
read = time_slices._SchedAttr()
size = ctypes.sizeof(read)
known = ctypes.CDLL(None).syscall(ctypes.c_long(NUMBER + 1), 0, ctypes.byref(read), size, 0) == 0
print(known, read.policy, read.nice)
"""


def test_policy_and_priority_stay_as_they_are() -> None:
    """Whatever the kernel makes of the wish, the process stays an ordinary one."""
    code = ASK_AND_READ.replace("NUMBER", "time_slices._SCHED_SETATTR[__import__('platform').machine()]")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "0", "0"]
