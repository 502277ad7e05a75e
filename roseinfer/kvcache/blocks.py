"""Who holds which block: a free list, reference counts, and unheld blocks that are worth keeping."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from roseinfer.batch import Ints


class OutOfBlocksError(Exception):
    """More blocks were asked for than are free."""


class BlockAllocator:
    """Hands out block ids `0 … num_blocks − 1`, counts who shares them, and takes them back.

    A block marked with `keep` stays as it is when nobody holds it, until no other is free: then the one that
    was released the longest ago is handed out, after a call of `on_evict` with it.
    """

    def __init__(self, num_blocks: int) -> None:
        self._free = np.arange(num_blocks - 1, -1, -1, dtype=np.int64)
        self._num_free = num_blocks
        self._references = np.zeros(num_blocks, dtype=np.int64)
        self._worth = np.zeros(num_blocks, dtype=np.bool_)
        self._kept: OrderedDict[int, None] = OrderedDict()  # unheld, the longest released first
        self.on_evict: Callable[[int], None] = lambda block: None

    @property
    def num_blocks(self) -> int:
        return len(self._free)

    @property
    def num_free(self) -> int:
        """Blocks that `take` can hand out."""
        return self._num_free + len(self._kept)

    @property
    def num_kept(self) -> int:
        """Blocks that nobody holds and that are kept."""
        return len(self._kept)

    def num_unheld(self, blocks: Ints) -> int:
        """How many of `blocks` nobody holds."""
        return len(blocks) - int(np.count_nonzero(self._references[blocks]))

    def take(self, count: int) -> Ints:
        """`count` blocks, each with one reference. Raises OutOfBlocksError and takes none."""
        if count > self.num_free:
            raise OutOfBlocksError(f"{count} blocks wanted, {self.num_free} free")
        while self._num_free < count:
            block = next(iter(self._kept))
            self.on_evict(block)
            self.forget(block)
        self._num_free -= count
        blocks = self._free[self._num_free : self._num_free + count].copy()
        self._references[blocks] = 1
        return blocks

    def share(self, blocks: Ints) -> None:
        """Add a reference to each of `blocks`, which are held by somebody or kept."""
        for block in blocks[self._references[blocks] == 0].tolist():
            del self._kept[block]
        self._references[blocks] += 1

    def release(self, blocks: Ints) -> None:
        """Drop a reference of each of `blocks`, as often as it is there; those without any are free again.

        Of those to keep, the last counts as released first: a prefix outlives what follows it.
        """
        np.subtract.at(self._references, blocks, 1)
        freed = blocks[self._references[blocks] == 0]
        freed = freed[np.sort(np.unique(freed, return_index=True)[1])]
        worth = self._worth[freed]
        self._kept.update(dict.fromkeys(freed[worth][::-1].tolist()))
        self._push(freed[~worth])

    def keep(self, block: int) -> None:
        """`block`, which is held, is worth keeping afterwards."""
        self._worth[block] = True

    def forget(self, block: int) -> None:
        """`block` is no longer worth keeping."""
        self._worth[block] = False
        if block in self._kept:
            del self._kept[block]
            self._push(np.array([block]))

    def _push(self, blocks: Ints) -> None:
        self._free[self._num_free : self._num_free + len(blocks)] = blocks
        self._num_free += len(blocks)

    def check(self) -> None:
        """Raise AssertionError unless free, kept and held blocks are exactly all blocks, each once."""
        unheld = np.concatenate([self._free[: self._num_free], np.array(list(self._kept), dtype=np.int64)])
        if len(np.unique(unheld)) != len(unheld):
            raise AssertionError("a block is free twice")
        if self._references[unheld].any():
            raise AssertionError("a free block is held")
        if not self._worth[list(self._kept)].all():
            raise AssertionError("a block is kept for nothing")
        held = int((self._references > 0).sum())
        if (self._references < 0).any() or held + len(unheld) != self.num_blocks:
            raise AssertionError(f"{self.num_blocks} blocks, {len(unheld)} free, {held} held")
