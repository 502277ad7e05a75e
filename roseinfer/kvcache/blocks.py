"""The blocks of the KV cache: a free list, reference counts, and eviction of blocks without references."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from roseinfer.batch import Ints


class OutOfBlocksError(Exception):
    """More blocks were asked for than are free."""


class BlockAllocator:
    """Hands out block ids `0 … num_blocks − 1`, counts references to them, and takes them back.

    A block marked with `keep` becomes evictable when its last reference is dropped: its contents stay until
    no block is free. Then the block released the longest ago is handed out, after `on_evict(block)`.
    """

    def __init__(self, num_blocks: int) -> None:
        self._free = np.arange(num_blocks - 1, -1, -1, dtype=np.int64)
        self._num_free = num_blocks
        self._references = np.zeros(num_blocks, dtype=np.int64)
        self._keep = np.zeros(num_blocks, dtype=np.bool_)
        self.evictable: OrderedDict[int, None] = OrderedDict()  # the longest released first
        self.on_evict: Callable[[int], None] = lambda block: None

    @property
    def num_blocks(self) -> int:
        return len(self._free)

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can hand out: free or evictable."""
        return self._num_free + len(self.evictable)

    def num_unreferenced(self, blocks: Ints) -> int:
        """Count the ids in `blocks` `[n]` that have no reference."""
        return len(blocks) - int(np.count_nonzero(self._references[blocks]))

    def allocate(self, count: int) -> Ints:
        """Hand out ids `[count]` of blocks, each with one reference. Raises OutOfBlocksError, and allocates
        none then."""
        if count > self.num_free:
            raise OutOfBlocksError(f"{count} blocks wanted, {self.num_free} free")
        while self._num_free < count:
            block = next(iter(self.evictable))
            self.on_evict(block)
            self.forget(block)
        self._num_free -= count
        blocks = self._free[self._num_free : self._num_free + count].copy()
        self._references[blocks] = 1
        return blocks

    def share(self, blocks: Ints) -> None:
        """Add a reference to each of `blocks` `[n]`, which have one already or are evictable."""
        for block in blocks[self._references[blocks] == 0].tolist():
            del self.evictable[block]
        self._references[blocks] += 1

    def release(self, blocks: Ints) -> None:
        """Drop a reference of each of `blocks` `[n]`, as often as it is listed. A block without references is
        free, or evictable if it is to be kept.

        Of the blocks to keep, the last counts as released first: a prefix is evicted after what follows it.
        """
        np.subtract.at(self._references, blocks, 1)
        freed = blocks[self._references[blocks] == 0]
        freed = freed[np.sort(np.unique(freed, return_index=True)[1])]
        keep = self._keep[freed]
        self.evictable.update(dict.fromkeys(freed[keep][::-1].tolist()))
        self._push(freed[~keep])

    def keep(self, block: int) -> None:
        """Make `block`, which has a reference, evictable when its last reference is dropped."""
        self._keep[block] = True

    def forget(self, block: int) -> None:
        """Do not keep `block` any longer."""
        self._keep[block] = False
        if block in self.evictable:
            del self.evictable[block]
            self._push(np.array([block]))

    def _push(self, blocks: Ints) -> None:
        self._free[self._num_free : self._num_free + len(blocks)] = blocks
        self._num_free += len(blocks)

    def check(self) -> None:
        """Raise AssertionError unless each block is free, evictable or referenced, and only one of them."""
        evictable = np.array(list(self.evictable), dtype=np.int64)
        unreferenced = np.concatenate([self._free[: self._num_free], evictable])
        if len(np.unique(unreferenced)) != len(unreferenced):
            raise AssertionError("a block is free twice")
        if self._references[unreferenced].any():
            raise AssertionError("a free block has a reference")
        if not self._keep[evictable].all():
            raise AssertionError("a block is evictable that is not to be kept")
        referenced = int((self._references > 0).sum())
        if (self._references < 0).any() or referenced + len(unreferenced) != self.num_blocks:
            raise AssertionError(
                f"{self.num_blocks} blocks, {len(unreferenced)} free or evictable, {referenced} referenced"
            )
