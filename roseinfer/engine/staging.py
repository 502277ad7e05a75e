"""Moves a step's arrays to the GPU, and its tokens back, through pinned host memory.

A box is a ring of SLOTS slots, one for each step that may be in flight. A step is launched only after the
step SLOTS before it has ended, and tokens are read before their slot is used again.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from roseinfer.engine.graphs import SLOTS
from roseinfer.kernels.triton import host_memory

#: int32 in 128 bytes, the size of a cache line: slots begin at one.
_LINE = 32


class _Box:
    """The host's number of the current slot, and the device's own counter of it (`ticket`)."""

    def __init__(self, device: torch.device) -> None:
        self._turn, self._ticket = -1, host_memory.ticket(device)

    def _next(self) -> int:
        self._turn = (self._turn + 1) % SLOTS
        return self._turn

    def reset(self) -> None:
        """Restart at the first slot on host and device, after capturing graphs has used some."""
        self._turn = -1
        self._ticket.zero_()


class Inbox(_Box):
    """Up to `size` int32 a step, from host to device. Every `array` is followed by one `send` on the host
    and one `take` on the device, which a graph may contain.

    Not `pinned`: `send` copies to device memory, from which `take` reads.
    """

    def __init__(self, size: int, device: torch.device, *, pinned: bool) -> None:
        super().__init__(device)
        size += -size % _LINE
        self._hosts = torch.zeros(SLOTS, size, dtype=torch.int32, pin_memory=pinned)
        self._arrays: list[NDArray[np.int32]] = list(self._hosts.numpy())
        self._source = self._hosts if pinned else torch.zeros(1, size, dtype=torch.int32, device=device)
        self._pinned = pinned

    def array(self) -> NDArray[np.int32]:
        """The host array `[words]` to fill for this step; it still holds an earlier step's data."""
        return self._arrays[self._next()]

    def send(self, count: int) -> None:
        """The first `count` numbers of the array are filled in."""
        if not self._pinned:
            self._source[0, :count].copy_(self._hosts[self._turn, :count])

    def take(self, out: Tensor, table: Tensor | None = None) -> None:
        """Copy the array's first numbers to `out` `[n]`, and rows of `table` `[rows, blocks]`: see
        `host_memory.read_slot`."""
        host_memory.read_slot(self._source, self._ticket, out, table)


class Lines:
    """Tracks which rows of a table `[rows, width]` changed since the last `put`."""

    def __init__(self, rows: int, width: int) -> None:
        self._changed, self._width = np.zeros(rows, dtype=np.bool_), width
        self.size = 1 + rows * (1 + width)

    def change(self, rows: NDArray[np.int64]) -> None:
        """Mark `rows` `[n]` as changed."""
        self._changed[rows] = True

    def put(self, table: NDArray[np.int64], array: NDArray[np.int32]) -> int:
        """Write the changed rows of `table` to `array` `[≥ size]`, as `host_memory.read_slot` reads them.

        Returns how many numbers were written.
        """
        changed = np.flatnonzero(self._changed)
        self._changed[:] = False
        count, start = len(changed), 1 + len(self._changed)
        end = start + count * self._width
        array[0] = count
        array[1 : 1 + count] = changed
        array[start:end].reshape(count, self._width)[:] = table[changed]
        return end


class Outbox(_Box):
    """Up to `size` tokens a step, from device to host. Every `give` on the device has one `next` on the
    host."""

    def __init__(self, size: int, device: torch.device) -> None:
        super().__init__(device)
        self._hosts = torch.zeros(SLOTS, size, dtype=torch.int64, pin_memory=device.type == "cuda")

    def give(self, tokens: Tensor) -> None:
        """Copy `tokens` `[n]` to the device's current slot; a graph may contain this."""
        host_memory.write_slot(tokens, self._hosts, self._ticket)

    def next(self) -> Tensor:
        """The slot `[size]` of the `give` that belongs to this call: its tokens are there once the step has
        ended."""
        return self._hosts[self._next()]
