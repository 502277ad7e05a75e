"""GPU code inside a shared library: code that a device never loads becomes zeros, which compress to nothing.

A library has regions of GPU code (magic 0xBA55ED50). A region is a header of 16 bytes and a row of entries,
each a header and a payload: PTX, which the driver compiles for the device or a later one, or a cubin, which
runs on its own compute capability or a later one of the same major version.
The layout is that of `__cudaFatCudaBinary` as `cuobjdump` reads it; file size and headers stay as they are.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAGIC = b"\x50\xed\x55\xba"
REGION = struct.Struct("<IHHQ")  # magic, version, header size, bytes of entries
ENTRY = struct.Struct("<HHIQIIHHI")  # kind, version, header size, bytes, compressed, -, minor, major, arch
PTX, CUBIN = 1, 2
KINDS = (PTX, CUBIN, 4, 8, 16, 32, 64)
MAX_HEADER = 4096


@dataclass(frozen=True)
class Entry:
    """One payload at `start`, for compute capability `arch` (90 is 9.0)."""

    kind: int
    arch: int
    start: int
    size: int


def regions(data: mmap.mmap | bytes) -> Iterator[list[Entry]]:
    """The entries of each region of GPU code."""
    at = data.find(MAGIC)
    while at >= 0:
        end = at + 4
        if at + REGION.size <= len(data):
            _, version, header, size = REGION.unpack_from(data, at)
            if (version, header) == (1, REGION.size) and at + header + size <= len(data):
                end = at + header + size
                yield list(_entries(data, at + header, end))
        at = data.find(MAGIC, end)


def _entries(data: mmap.mmap | bytes, at: int, end: int) -> Iterator[Entry]:
    while at + ENTRY.size <= end:
        kind, _, header, size, _, _, _, _, arch = ENTRY.unpack_from(data, at)
        if kind not in KINDS or not ENTRY.size <= header <= MAX_HEADER or at + header + size > end:
            return
        yield Entry(kind, arch, at + header, size)
        at += header + size


def loaded(entries: list[Entry], arch: int) -> list[Entry]:
    """The entries that a device of that capability may load: its own cubins, else those that can run on
    it."""
    own = [e for e in entries if e.kind == CUBIN and e.arch == arch]
    return own or [
        e
        for e in entries
        if e.arch <= arch and (e.kind == PTX or (e.kind == CUBIN and e.arch // 10 == arch // 10))
    ]


def slim(path: Path, arch: int) -> int:
    """Zero every payload that a device of capability `arch` never loads. Returns the number of bytes."""
    zeroed = 0
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        for entries in regions(data):
            needed = loaded(entries, arch)
            for entry in entries:
                if entry not in needed:
                    data[entry.start : entry.start + entry.size] = bytes(entry.size)
                    zeroed += entry.size
    return zeroed
