"""How kernels are started: how many programs, and whether while the kernel before still runs.

Numbers that change from step to step are not specialised (`do_not_specialize`): Triton would compile a kernel
once more for 1 and for multiples of 16, while requests are served.
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
    """How many programs the device runs at once at least; a number like a GPU's where there is none."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 8


def early(device: torch.device) -> dict[str, Any]:
    """Launch options: the kernel starts while the one before it ends (programmatic dependent launch, PDL:
    compute capability 9.0 and later), and `pdl_wait` in it waits until that one's results are there."""
    return {"EARLY": True, "launch_pdl": True} if is_hopper(device) else {"EARLY": False}


def padded_prompts(prompts: int) -> int:
    """A power of 2 that is no less; one compiled kernel serves up to 128."""
    return max(128, triton.next_power_of_2(prompts))


@triton.jit
def pdl_wait(EARLY: tl.constexpr, LATE: tl.constexpr = False):
    """Let the next kernel start, or with LATE leave that to `pdl_launch_late`, then wait for the kernels
    before this one. What does not depend on them, such as weights, is loaded before this call."""
    if EARLY:
        if not LATE:
            gdc_launch_dependents()
        gdc_wait()


@triton.jit
def pdl_launch_late(EARLY: tl.constexpr, LATE: tl.constexpr):
    """Let the next kernel start where `pdl_wait` has not."""
    if EARLY and LATE:
        gdc_launch_dependents()
