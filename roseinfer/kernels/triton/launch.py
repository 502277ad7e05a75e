"""Launches of kernels: the number of programs, and programmatic dependent launch.

Integers that change from step to step are not specialised (`do_not_specialize`): Triton would otherwise
compile a kernel again for 1 and for multiples of 16, while requests are served.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from roseinfer.kernels.capability import is_hopper


@cache
def multiprocessors(device: torch.device) -> int:
    """The number of the GPU's SMs; 8 on other devices, where kernels are interpreted."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 8


def early(device: torch.device) -> dict[str, Any]:
    """Launch options: the kernel starts while the one before it ends (programmatic dependent launch, PDL:
    compute capability 9.0 and later), and `pdl_wait` in it waits until that one's results are there."""
    return {"EARLY": True, "launch_pdl": True} if is_hopper(device) else {"EARLY": False}


def padded_prompts(prompts: int) -> int:
    """The next power of 2, at least 128, so that one compiled kernel serves up to 128 prompts."""
    return max(128, triton.next_power_of_2(prompts))


@triton.jit
def pdl_wait(EARLY: tl.constexpr, LATE: tl.constexpr = False):
    """Let the next kernel start (with LATE, `pdl_launch_late` does that), then wait for the previous kernel.
    What does not depend on its results, such as weights, is loaded before this call."""
    if EARLY:
        if not LATE:
            gdc_launch_dependents()
        gdc_wait()


@triton.jit
def pdl_launch_late(EARLY: tl.constexpr, LATE: tl.constexpr):
    """Let the next kernel start, if `pdl_wait` has not."""
    if EARLY and LATE:
        gdc_launch_dependents()
