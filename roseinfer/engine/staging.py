"""Host arrays on their way to the GPU: packed into pinned memory, one asynchronous copy a step."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: Steps that may be under way before a buffer is written again.
_DEPTH = 3


class Staging:
    """A device buffer of `size` int32 at a fixed address, filled from pinned buffers in turn.

    A pinned buffer is written again only after the copy that read it has ended.
    """

    def __init__(self, size: int, device: torch.device, *, pinned: bool) -> None:
        self.device = torch.zeros(size, dtype=torch.int32, device=device)
        self._hosts = [torch.zeros(size, dtype=torch.int32, pin_memory=pinned) for _ in range(_DEPTH)]
        self._arrays: list[NDArray[np.int32]] = [host.numpy() for host in self._hosts]
        self._copied = [torch.cuda.Event() for _ in range(_DEPTH)]  # type: ignore[no-untyped-call]
        self._turn = 0

    def array(self) -> NDArray[np.int32]:
        """The host array to fill for the next `send`; it holds what an earlier step left."""
        self._turn = (self._turn + 1) % _DEPTH
        self._copied[self._turn].synchronize()
        return self._arrays[self._turn]

    def send(self, count: int) -> Tensor:
        """Start copying the first `count` of what `array` gave. Returns the device's first `count`."""
        target = self.device[:count]
        target.copy_(self._hosts[self._turn][:count], non_blocking=True)
        self._copied[self._turn].record()
        return target


def fetch(tensor: Tensor) -> Tensor:
    """Start copying `tensor` to pinned memory of its own; it is there when the stream has come this far."""
    host = torch.empty_like(tensor, device="cpu", pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


class Results:
    """Sampled tokens on their way back: pinned buffers in turn, each with the event that says it is there."""

    def __init__(self, size: int) -> None:
        self._hosts = [torch.zeros(size, dtype=torch.int64, pin_memory=True) for _ in range(_DEPTH + 1)]
        self._events = [torch.cuda.Event() for _ in self._hosts]  # type: ignore[no-untyped-call]
        self._turn = 0

    def fetch(self, *parts: Tensor) -> tuple[Tensor, torch.cuda.Event]:
        """Start copying `parts` one after the other. Returns the pinned tensor and the event to wait for."""
        self._turn = (self._turn + 1) % len(self._hosts)
        host, event = self._hosts[self._turn], self._events[self._turn]
        start = 0
        for part in parts:
            host[start : start + len(part)].copy_(part, non_blocking=True)
            start += len(part)
        event.record()
        return host[:start], event
