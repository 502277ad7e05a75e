"""Named ranges of the engine's thread for profilers. Other threads and processes use spans.py."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.profiler import record_function

_NOTHING = nullcontext()


def named_range(name: str) -> AbstractContextManager[object]:
    """record_function if this thread is being profiled (torch, NVTX), else a null context.

    Entering and leaving record_function takes 6 to 17 us even without a profiler; this takes 0.2 us.
    """
    profiled: bool = torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
    return record_function(name) if profiled else _NOTHING
