"""Zeroes what one kind of GPU never loads of CUDA libraries, so that it compresses to nothing.

A library has its kernels in fat binaries: a header of 16 bytes (magic, version, its own size, size of the
rest), then entries. The header of an entry says its kind (PTX, or machine code as ELF), its sizes and its
architecture; code follows. A GPU of architecture 90 loads ELF for 90, else ELF for an earlier one of its
generation, else it compiles PTX of an earlier architecture.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_MAGIC = struct.pack("<I", 0xBA55ED50)
_HEADER = struct.Struct("<4sHHQ")
#: Kind, version, size of the header, size of the code; the architecture stands 28 bytes from its start.
_ENTRY = struct.Struct("<HHIQ12xI")
PTX, ELF = 1, 2
_KINDS = {PTX, ELF, 8, 0x10, 0x20, 0x40}
#: Kind, offset, size and link to another section of a header in a table of sections; which kind has the
#: versions of symbols that a library needs.
_SECTION = struct.Struct("<4xI16xQQI20x")
_NEEDED_VERSIONS = 0x6FFFFFFE


class Code(NamedTuple):
    """An entry of a fat binary: where its code begins and how many bytes it has."""

    kind: int
    architecture: int
    start: int
    size: int


def fat_binaries(content: bytes | mmap.mmap) -> Iterator[list[Code]]:
    """Yield the entries of each fat binary in a library."""
    position = content.find(_MAGIC)
    while position >= 0:
        end = position + len(_MAGIC)
        if position + _HEADER.size <= len(content):
            _, version, header_size, size = _HEADER.unpack_from(content, position)
            if (version, header_size) == (1, _HEADER.size) and position + header_size + size <= len(content):
                end = position + header_size + size
                yield list(_entries(content, position + header_size, end))
        position = content.find(_MAGIC, end)


def _entries(content: bytes | mmap.mmap, start: int, end: int) -> Iterator[Code]:
    while start + _ENTRY.size <= end:
        kind, _, header_size, size, architecture = _ENTRY.unpack_from(content, start)
        if kind not in _KINDS or not _ENTRY.size <= header_size <= 4096 or start + header_size + size > end:
            return
        yield Code(kind, architecture, start + header_size, size)
        start += header_size + size


def unused(entries: list[Code], architecture: int) -> list[Code]:
    """Return the entries that a GPU of this architecture never loads while the others are there."""
    exact = [code for code in entries if code.kind == ELF and code.architecture == architecture]
    usable = [
        code
        for code in entries
        if code.architecture <= architecture
        and (code.kind == PTX or (code.kind == ELF and code.architecture // 10 == architecture // 10))
    ]
    return [code for code in entries if code not in (exact or usable)]


def slim(library: Path, architecture: int) -> int:
    """Zero in place what a GPU of this architecture never loads. Returns the number of bytes."""
    zeroed = 0
    with library.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        for entries in fat_binaries(content):
            for code in unused(entries, architecture):
                content[code.start : code.start + code.size] = bytes(code.size)
                zeroed += code.size
    return zeroed


def relink(library: Path, old: str, new: str) -> int:
    """Let a library load `new` where it loads `old`, in place: a name of the same length, which is that of
    the versions of symbols too, as in CUDA's libraries. Returns the number of versions renamed."""
    renamed = 0
    old_text, new_text = (b"\0" + name.encode() + b"\0" for name in (old, new))
    old_hash, new_hash = (struct.pack("<I", _name_hash(name)) for name in (old, new))
    with library.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        (table,) = struct.unpack_from("<Q", content, 40)
        size, count = struct.unpack_from("<HH", content, 58)
        sections = [_SECTION.unpack_from(content, table + i * size) for i in range(count)]
        for _, start, length, link in (s for s in sections if s[0] == _NEEDED_VERSIONS):
            _, texts, texts_length, _ = sections[link]
            text = content[texts : texts + texts_length]
            content[texts : texts + texts_length] = text.replace(old_text, new_text)
            for place in range(start, start + length, 4):
                if content[place : place + 4] == old_hash:
                    content[place : place + 4] = new_hash
                    renamed += 1
    return renamed


def _name_hash(name: str) -> int:
    """The hash of a symbol's version, by the ELF standard."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        value = (value ^ (value & 0xF0000000) >> 24) & 0x0FFFFFFF
    return value
