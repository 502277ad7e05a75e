"""Compiles CUDA C++ with NVRTC, which comes with PyTorch: no CUDA toolkit is needed."""

from __future__ import annotations

import logging
import re
from functools import cache
from pathlib import Path

import torch

from roseinfer.kernels.cuda.launch import Kernel

log = logging.getLogger(__name__)
_FOLDER = Path(__file__).parent


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
        compiled = torch.cuda._compile_kernel(source, function, nvcc_options=["--use_fast_math"])
    except (RuntimeError, OSError) as error:
        raise BuildError(f"{file}.cu: {error}") from error
    return Kernel(compiled)


def with_includes(name: str) -> str:
    """The text of a file of this folder with its includes expanded, as NVRTC gets one text and no files."""
    text = (_FOLDER / name).read_text()
    return re.sub(r'#include "(.+)"\n', lambda include: with_includes(include[1]), text)
