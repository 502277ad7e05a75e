"""Who holds which block: a free list and reference counts."""

from __future__ import annotations

import numpy as np

from roseinfer.attention.base import Ints


class OutOfBlocksError(Exception):
    """More blocks were asked for than are free."""


class BlockAllocator:
    """Hands out block ids `0 … num_blocks − 1`, counts who shares them, and takes them back."""

    def __init__(self, num_blocks: int) -> None:
        self._free = np.arange(num_blocks - 1, -1, -1, dtype=np.int64)
        self._num_free = num_blocks
        self._references = np.zeros(num_blocks, dtype=np.int64)

    @property
    def num_blocks(self) -> int:
        return len(self._free)

    @property
    def num_free(self) -> int:
        return self._num_free

    def take(self, count: int) -> Ints:
        """`count` blocks, each with one reference. Raises OutOfBlocksError and takes none."""
        if count > self._num_free:
            raise OutOfBlocksError(f"{count} blocks wanted, {self._num_free} free")
        self._num_free -= count
        blocks = self._free[self._num_free : self._num_free + count].copy()
        self._references[blocks] = 1
        return blocks

    def share(self, blocks: Ints) -> None:
        """Add a reference to each of `blocks`, which are held by somebody."""
        self._references[blocks] += 1

    def release(self, blocks: Ints) -> None:
        """Drop a reference of each of `blocks` (no block twice); those without any are free again."""
        self._references[blocks] -= 1
        freed = blocks[self._references[blocks] == 0]
        self._free[self._num_free : self._num_free + len(freed)] = freed
        self._num_free += len(freed)

    def check(self) -> None:
        """Raise AssertionError unless free blocks and held blocks are exactly all blocks, each once."""
        free = self._free[: self._num_free]
        if len(np.unique(free)) != len(free):
            raise AssertionError("a block is free twice")
        if self._references[free].any():
            raise AssertionError("a free block is held")
        held = int((self._references > 0).sum())
        if (self._references < 0).any() or held + len(free) != self.num_blocks:
            raise AssertionError(f"{self.num_blocks} blocks, {len(free)} free, {held} held")
