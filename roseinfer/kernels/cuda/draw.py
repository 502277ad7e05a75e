"""Samples tokens from logits, with top_k, top_p and min_p but without a sort: see `draw.cu`.

For GPUs of compute capability 9.0 or later. Reference: `roseinfer.engine.sampler.sample`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from roseinfer.kernels.capability import is_hopper
from roseinfer.kernels.cuda.build import available, kernel
from roseinfer.request.params import SamplingRows
from roseinfer.tensors import to_device

_WARPS, _CLUSTER = 16, 8
_THREADS = 32 * _WARPS * _CLUSTER
#: Logits of a thread at most, which it keeps in registers.
_MOST = 64
#: The struct `How` of draw.cu.
_HOW = np.dtype(
    [("uniform", "f8"), ("scale", "f4"), ("top_p", "f4"), ("min_p", "f4"), ("top_k", "i4"), ("row", "i4")],
    align=True,
)
#: The smallest temperature: below it only the most likely token has any probability left.
_COLDEST = 1e-30


def takes(logits: Tensor) -> bool:
    """Return whether the kernel can sample from `logits` `[R, vocab]`."""
    return (
        (logits.element_size() == 2 or logits.dtype == torch.float32)
        and logits.stride(1) == 1
        and logits.shape[1] <= _MOST * _THREADS
        and is_hopper(logits.device)
        and available()
    )


def draw(
    logits: Tensor,
    params: SamplingRows,
    uniform: NDArray[np.float64],
    rows: NDArray[np.int64],
    last: Tensor,
    out: Tensor,
) -> None:
    """Sample a token from every row of `logits` `[R, vocab]` to `out` `[R]` int64 and to `last[rows]`.

    temperature 0 takes the argmax (the first of equals); top_k 0, top_p 1 and min_p 0 are no limit;
    `uniform`: the random numbers, in [0, 1). `params` and all other arrays: `[R]`.
    """
    count, vocab = logits.shape
    settings: NDArray[Any] = np.empty(count, _HOW)
    greedy = params["temperature"] <= 0
    settings["uniform"], settings["row"] = uniform, rows
    settings["scale"] = np.log2(np.e) / np.maximum(params["temperature"], _COLDEST)
    settings["top_p"] = np.where(greedy, 1, params["top_p"])
    settings["min_p"] = params["min_p"]
    top_k = np.where(params["top_k"] > 0, np.minimum(params["top_k"], vocab), vocab)
    settings["top_k"] = np.where(greedy, 1, top_k)
    run = kernel(
        "draw", "draw", ("BF16", int(logits.dtype == torch.bfloat16)),
        ("FLOATS", int(logits.dtype == torch.float32)), ("WARPS", _WARPS), ("CLUSTER", _CLUSTER),
        ("EACH", -(-vocab // _THREADS)),
    )  # fmt: skip
    run(
        (count, 1, _CLUSTER),
        32 * _WARPS,
        [logits, logits.stride(0), vocab, to_device(settings.view(np.uint8), logits.device), last, out],
    )
