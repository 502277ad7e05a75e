"""The client's wish for short time slices."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

ASK_AND_READ = """
import ctypes, os
from harness.loadgen import system_limits
os.sched_setscheduler(0, POLICY, os.sched_param(0))
os.nice(MORE)
system_limits.ask_for_short_slices()
read = system_limits._SchedAttr()
size = ctypes.sizeof(read)
known = ctypes.CDLL(None).syscall(ctypes.c_long(NUMBER + 1), 0, ctypes.byref(read), size, 0) == 0
print(known, read.policy, read.nice)
"""


@pytest.mark.parametrize(("policy", "more"), [(os.SCHED_OTHER, 0), (os.SCHED_OTHER, 3), (os.SCHED_BATCH, 1)])
def test_policy_and_priority_stay_as_they_are(policy: int, more: int) -> None:
    """Whatever the kernel makes of the wish, the process stays what it is, as `nice` or `chrt` made it."""
    code = ASK_AND_READ.replace("NUMBER", "system_limits._SCHED_SETATTR[__import__('platform').machine()]")
    code = code.replace("POLICY", str(policy)).replace("MORE", str(more))
    nice = min(19, os.getpriority(os.PRIO_PROCESS, 0) + more)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", str(policy), str(nice)]
