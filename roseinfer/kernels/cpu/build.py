"""Builds the C++ kernels with the machine's compiler, and keeps them in the user's cache folder."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor
from torch._C._profiler import _RecordFunctionFast

from roseinfer.kernels.cache import cache_folder, whole_file

HERE = Path(__file__).parent
SOURCES = sorted(HERE.glob("*.cpp"))
FLAGS = ("-O3", "-march=native", "-ffast-math", "-fno-finite-math-only", "-std=c++17", "-fPIC", "-fopenmp")


#: Types of kernel arguments.
POINTER, LONG, INT, FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float


class BuildError(Exception):
    """The kernels cannot be built here. The message says why."""


def load_library() -> ctypes.CDLL:
    """The compiled kernels, built on first use. Raises BuildError.

    The library is linked without an OpenMP runtime of its own: it uses the one PyTorch has loaded, and so
    shares its threads.
    """
    loaded = load_once()
    if isinstance(loaded, str):
        raise BuildError(loaded)
    return loaded


@cache
def load_once() -> ctypes.CDLL | str:
    """The library, or why there is none: a build that has failed is not tried again."""
    try:
        return _load()
    except (BuildError, OSError) as error:  # OSError: no such compiler, or the folder cannot be written
        return str(error)


def _load() -> ctypes.CDLL:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise BuildError("no C++ compiler (g++ or clang++) was found")
    key = hashlib.sha256(repr((compiler, FLAGS, _cpu_flags())).encode())
    for file in [*SOURCES, *sorted(HERE.glob("*.h"))]:
        key.update(file.read_bytes())
    path = cache_folder() / f"cpu-{key.hexdigest()[:16]}.so"
    if not path.is_file():
        _build(compiler, path)
    library = ctypes.CDLL(str(path))
    library.has_bf16_products()  # asks for AMX's tiles: without that, the first one ends the process
    return library


def kernel(name: str, *arguments: type) -> Callable[..., None]:
    """The kernel `name`, which takes `arguments`. Raises BuildError.

    PyTorch's profiler does not see calls through ctypes. While this thread is profiled, each is shown as the
    operator `roseinfer::name`.
    """
    function = getattr(load_library(), name)
    function.argtypes, function.restype = arguments, None
    profiled: Callable[[], bool] = torch.autograd._profiler_enabled  # type: ignore[attr-defined]

    def call(*values: object) -> None:
        if profiled():
            with _RecordFunctionFast(f"roseinfer::{name}"):
                function(*values)
        else:
            function(*values)

    return call


class Call(partial[None]):
    """A kernel with its arguments, which can be called again and again."""

    tensors: Sequence[Tensor | None]

    @staticmethod
    def of(kernel: Callable[..., None], tensors: Sequence[Tensor | None], *numbers: float) -> Call:
        """Prepare a kernel that takes pointers to `tensors`, of any shape, then `numbers`. Keeps the tensors
        alive."""
        call = Call(kernel, *(None if tensor is None else tensor.data_ptr() for tensor in tensors), *numbers)
        call.tensors = tensors
        return call


def _build(compiler: str, path: Path) -> None:
    with whole_file(path) as linked:
        objects = {source: str(linked.with_name(source.stem + ".o")) for source in SOURCES}
        for command in (
            *(
                [compiler, *FLAGS, "-c", str(source), "-o", object_file]
                for source, object_file in objects.items()
            ),
            [compiler, "-shared", *objects.values(), "-o", str(linked), "-lm"],
        ):
            compilation = subprocess.run(command, capture_output=True, text=True)
            if compilation.returncode:
                raise BuildError(f"{compiler} failed: {compilation.stderr.strip()[-400:]}")


def _cpu_flags() -> str:
    """Flags on which `-march=native` depends, so that machines can share a cache folder."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def has_bf16_products() -> bool:
    """Return whether the processor has AVX-512, and the system lets this process use AMX where it has that
    too: then the bfloat16 GEMM kernels are used. Raises BuildError."""
    return bool(load_library().has_bf16_products())
