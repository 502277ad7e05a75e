"""Launches compiled kernels by the CUDA driver: PyTorch's launcher has no programmatic dependent launch."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from roseinfer.kernels.capability import is_hopper

#: Names and layouts as in CUDA's driver API (cuda.h, 12.0 or later).
_PROGRAMMATIC_STREAM_SERIALIZATION = 6
_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
_PREFERRED_SHARED_MEMORY_CARVEOUT = 9


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: an id and a union of 64 bytes."""

    _fields_ = [
        ("id", ctypes.c_int),
        ("pad", ctypes.c_int),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_char * 60),
    ]


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    ]


class Kernel:
    """A compiled kernel, launched with programmatic dependent launch where the device has it: it starts while
    the kernel before it ends, and calls `pdl_wait` of half.cuh before it uses that kernel's results."""

    def __init__(self, compiled: Any) -> None:
        self._function: ctypes.c_void_p = compiled.func
        self._compiled = compiled  # holds the module
        self._allowed = 0

    def __call__(
        self,
        grid: tuple[int, int, int],
        threads: int,
        args: list[Tensor | int],
        shared_bytes: int = 0,
        *,
        beside: bool = False,
    ) -> None:
        """Launch on the current stream.

        Args:
            args: tensors are passed as pointers, integers as C's `int`.
            shared_bytes: dynamic shared memory of a block.
            beside: give as much as possible of an SM's L1 cache to shared memory, so that more blocks fit.
        """
        driver, stream = torch.cuda._utils._get_gpu_runtime_library(), torch.cuda.current_stream()
        if shared_bytes > self._allowed:
            _check(driver.cuFuncSetAttribute(self._function, _MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes))
            if beside:
                _check(driver.cuFuncSetAttribute(self._function, _PREFERRED_SHARED_MEMORY_CARVEOUT, 100))
            self._allowed = shared_bytes
        values = [
            ctypes.c_void_p(arg.data_ptr()) if isinstance(arg, Tensor) else ctypes.c_int(arg) for arg in args
        ]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        early = _Attribute(id=_PROGRAMMATIC_STREAM_SERIALIZATION, value=1)
        config = _Config(
            grid=(ctypes.c_uint * 3)(*grid),
            block=(ctypes.c_uint * 3)(threads, 1, 1),
            shared_bytes=shared_bytes,
            stream=stream.cuda_stream,
            attributes=ctypes.pointer(early),
            count=int(is_hopper(stream.device)),
        )
        _check(driver.cuLaunchKernelEx(ctypes.byref(config), self._function, pointers, None))


def _check(result: int) -> None:
    if result:
        raise RuntimeError(f"CUDA's driver answers {result}")
