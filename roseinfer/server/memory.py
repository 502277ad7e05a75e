"""How a process of the server takes memory from the kernel, and gives it back."""

from __future__ import annotations

import contextlib
import ctypes

#: Bytes from which on memory comes from the kernel for each block, and goes back when it is freed: glibc
#: would raise this with every block that is freed (mallopt(3)).
_OWN_BLOCK, _M_MMAP_THRESHOLD = 128 << 10, -3


def return_freed_blocks() -> None:
    """Give large blocks back to the kernel as soon as they are freed. Nothing with another C library than
    glibc."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _OWN_BLOCK)
