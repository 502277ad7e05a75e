"""C++ attention kernels over the paged KV cache; see paged_decode.cpp and paged_prefill.cpp.

Reference: `roseinfer.attention.torch_paged.TorchPagedAttention`. Both raise BuildError where the kernels
cannot be built.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from roseinfer.kernels.cpu.build import FLOAT, INT, LONG, POINTER, kernel

_DECODE = {torch.float32: "paged_decode_fp32", torch.bfloat16: "paged_decode_bf16"}
DECODE_DTYPES = tuple(_DECODE)
#: Elements of a head, and tokens of a prompt, that the kernels process at a time.
VECTOR = 16
#: The largest head size of `paged_prefill`.
MAX_PREFILL_DIM = 1024


def paged_decode(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, out: Tensor,
    slots: NDArray[np.int64], blocks: NDArray[np.int64], lengths: NDArray[np.int64], block_size: int,
) -> None:  # fmt: skip
    """Store one token of each of `D` requests, attend to its request's tokens, and write the result to `out`.

    Args:
        q, out: `[D, heads, dim]`, and k, v `[D, kv heads, dim]`: a token's row is contiguous, as is all of
            `out`.
        keys, values: one layer's cache, `[slots, kv heads, dim]`.
        slots: `[D]`, where the tokens' keys and values go.
        blocks: `[D, max blocks]`, block tables; its rows may share memory.
        lengths: `[D]`, tokens of each request, the new one included.
    """
    DecodeCall(q, k, v, keys, values, out, block_size)(array_pointers(slots, blocks, lengths))


#: Pointers to slots, to block tables, and to lengths; before the last, the elements of a row of the tables.
Pointers = tuple[int, int, int, int]


def array_pointers(
    slots: NDArray[np.int64], blocks: NDArray[np.int64], lengths: NDArray[np.int64]
) -> Pointers:
    """Pointers to a step's arrays, for all of its layers: `slots` `[D]`, `blocks` `[D, blocks]`, `lengths`
    `[D]`."""
    width = blocks.strides[0] // blocks.itemsize
    return slots.ctypes.data, blocks.ctypes.data, width, lengths.ctypes.data


class DecodeCall:
    """`paged_decode` of these tensors, which can be called again with other arrays. It keeps them alive."""

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, out: Tensor, block_size: int
    ) -> None:
        self._tensors = q, k, v, keys, values, out
        self._kernel = _paged_decode(q.dtype)
        rows, cache = ([each.data_ptr() for each in group] for group in ((q, k, v), (keys, values, out)))
        self._first = *rows, q.stride(0), k.stride(0), v.stride(0), *cache
        self._last = len(q), q.shape[1], k.shape[1], q.shape[2], block_size, q.shape[2] ** -0.5

    def __call__(self, arrays: Pointers) -> None:
        self._kernel(*self._first, *arrays, *self._last)


def paged_prefill(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, out: Tensor, workspace: Tensor,
    slots: NDArray[np.int64], blocks: NDArray[np.int64], prompts: NDArray[np.int64], block_size: int,
) -> None:  # fmt: skip
    """Store the `T` tokens of prompts, attend causally within each, and write the result to `out`; bfloat16.

    Args:
        q, out: `[T, heads, dim]`, and k, v `[T, kv heads, dim]`, keys, values: as in `paged_decode`.
        workspace: `workspace_size` elements, which are overwritten.
        slots: `[T]`, where the tokens' keys and values go.
        blocks: flat, the blocks of each prompt's cached tokens.
        prompts: `[P, 4]`, for each prompt its first row, its number of rows, its number of cached tokens, and
            the index of its first block in `blocks`.
    """
    _paged_prefill()(
        q.data_ptr(), k.data_ptr(), v.data_ptr(), q.stride(0), k.stride(0), v.stride(0),
        keys.data_ptr(), values.data_ptr(), out.data_ptr(), workspace.data_ptr(),
        slots.ctypes.data, blocks.ctypes.data, prompts.ctypes.data, len(prompts),
        q.shape[1], k.shape[1], q.shape[2], block_size, q.shape[2] ** -0.5,
    )  # fmt: skip


def workspace_size(prompts: NDArray[np.int64], kv_heads: int, dim: int) -> int:
    """Elements of workspace that `paged_prefill` needs for `prompts` `[P, 4]`."""
    keys = -(-prompts[:, 1:3].sum(axis=1) // VECTOR) * VECTOR
    return 2 * int(keys.sum()) * kv_heads * dim


@cache
def _paged_decode(dtype: torch.dtype) -> Callable[..., None]:
    arguments = (*[POINTER] * 3, *[LONG] * 3, *[POINTER] * 5, LONG, POINTER, LONG, *[INT] * 4, FLOAT)
    return kernel(_DECODE[dtype], *arguments)


@cache
def _paged_prefill() -> Callable[..., None]:
    arguments = (*[POINTER] * 3, *[LONG] * 3, *[POINTER] * 7, LONG, *[INT] * 4, FLOAT)
    return kernel("paged_prefill_bf16", *arguments)
