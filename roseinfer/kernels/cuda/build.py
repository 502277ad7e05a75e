"""Compiles CUDA C++ with NVRTC, which comes with PyTorch: no CUDA toolkit is needed. Binaries are kept in the
user's cache folder."""

from __future__ import annotations

import hashlib
import logging
import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from roseinfer.kernels.cache import cache_folder, whole_file
from roseinfer.kernels.cuda.launch import Kernel

log = logging.getLogger(__name__)
_FOLDER = Path(__file__).parent
_OPTIONS = ("--use_fast_math",)


#: Macros of a small kernel, which is compiled to see whether any can be.
PROBE = (
    ("BF16", 0),
    ("DIM", 32),
    ("HEADS", 1),
    ("KV_HEADS", 1),
    ("BLOCK_SIZE", 16),
    ("SPLITS", 1),
    ("WARPS", 1),
)


class BuildError(Exception):
    """The kernel cannot be compiled here."""


@cache
def available() -> bool:
    """Return whether kernels can be compiled here; a warning says why not."""
    try:
        kernel("paged_decode", "paged_decode", *PROBE)
    except BuildError as error:
        log.warning("CUDA C++ kernels are off, those of Triton and PyTorch are used: %s", error)
        return False
    return True


@cache
def kernel(file: str, function: str, *defines: tuple[str, int | float]) -> Kernel:
    """The kernel `function` of `file`.cu, compiled with the macros `defines`.

    Raises:
        BuildError: There is no compiler, or it fails.
    """
    parts = ["#define INFINITY __int_as_float(0x7f800000)"]
    parts += [f"#define {macro} {value}" for macro, value in defines]
    source = "\n".join([*parts, with_includes(f"{file}.cu")])
    try:
        return Kernel(_loaded(source, function))
    except (RuntimeError, OSError) as error:
        raise BuildError(f"{file}.cu: {error}") from error


def _loaded(source: str, function: str) -> Any:
    """The function on the GPU, from the cache folder or compiled: as `torch.cuda._compile_kernel` has it."""
    utils: Any = torch.cuda._utils
    made_for = torch.__version__, torch.version.cuda, torch.cuda.get_device_capability()
    key = hashlib.sha256(repr((made_for, _OPTIONS, function, source)).encode()).hexdigest()
    path = cache_folder() / f"cuda-{key[:32]}.cubin"
    try:
        return utils._cuda_load_module(path.read_bytes(), [function])[function]
    except (RuntimeError, OSError):  # it is not there, or not a binary for this GPU
        binary, name = utils._nvrtc_compile(source, function, nvcc_options=list(_OPTIONS))
    loaded = utils._cuda_load_module(binary, [name])[name]
    with suppress(OSError), whole_file(path) as partial:
        partial.write_bytes(binary)
    return loaded


def with_includes(name: str) -> str:
    """The text of a file of this folder with its includes expanded, as NVRTC gets one text and no files."""
    text = (_FOLDER / name).read_text()
    return re.sub(r'#include "(.+)"\n', lambda include: with_includes(include[1]), text)
