"""How a server process gets memory from the operating system, and returns it."""

from __future__ import annotations

import contextlib
import ctypes

#: Blocks of at least this many bytes are mapped one by one, and unmapped when they are freed. glibc would
#: otherwise raise the threshold when it frees such a block (mallopt(3)).
_OWN_BLOCK, _M_MMAP_THRESHOLD = 128 << 10, -3


def return_freed_blocks() -> None:
    """Have large blocks returned to the system as soon as they are freed. Does nothing without glibc."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _OWN_BLOCK)
