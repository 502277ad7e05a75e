"""Collectives of a tensor-parallel model, in kernels that read peer memory over NVLink: see `collectives.cu`.

The memory is PyTorch's symmetric memory, without multicast. References: `torch.distributed.all_reduce`,
`broadcast` and `gather`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import _symmetric_memory as symmetric

from roseinfer.kernels.cuda.build import kernel

#: Thread blocks of a kernel at most, two for each multiprocessor of an H100 or H200. A block waits only for
#: the same block of each peer, and blocks start in order, so none waits for one that cannot start.
_BLOCKS = 264
_THREADS = 512
_ALIGN = 1 << 10


@dataclass(frozen=True)
class PeerSizes:
    """Sizes of the buffers that peers read: partial sums of up to `tokens` rows of `width` elements, and
    logits of up to `rows` rows, of which each rank has `share` of the `vocabulary` elements."""

    tokens: int
    width: int
    rows: int
    share: int
    vocabulary: int


class PeerMemory:
    """This rank's partial results, in memory that its peers read.

    All ranks make the same calls in the same order. There are two buffers for partial sums, used in turns: a
    rank that has synchronised with its peers on one of them knows that they have read the other. A step ends
    with `gather`, so that the next may begin with either.

    Args:
        group: of torch.distributed, over NCCL, with all ranks of the model.
    """

    def __init__(
        self, sizes: PeerSizes, rank: int, ranks: int, group: Any, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._sizes, self._rank, self._ranks, self._dtype = sizes, rank, ranks, dtype
        self._pitch = sizes.share + -sizes.share % 8
        lengths = [2 * sizes.tokens * sizes.width] * 2 + [2 * sizes.rows * self._pitch, 4 * _BLOCKS * ranks]
        starts = [0]
        for length in lengths:
            starts.append(starts[-1] + length + -length % _ALIGN)
        self._memory: Tensor = symmetric.empty(starts[-1], dtype=torch.uint8, device=device)
        self._memory.zero_()
        handle = symmetric.rendezvous(self._memory, group)
        pointers = [[base + start for base in handle.buffer_ptrs] for start in starts[:-1]]
        self._parts = torch.tensor(pointers, dtype=torch.int64, device=device)
        self._buffers = [
            self._memory[s : s + n].view(dtype) for s, n in zip(starts[:3], lengths[:3], strict=True)
        ]
        self._meetings = torch.zeros(_BLOCKS, dtype=torch.int32, device=device)
        self._alone = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self._turn = 0
        torch.cuda.synchronize(device)
        handle.barrier()
        torch.cuda.synchronize(device)

    def give_up(self) -> None:
        """Make kernels stop waiting for peers; any thread may call this. Results are invalid from now on."""
        self._alone.fill_(1)

    def part(self, rows: int) -> Tensor:
        """The buffer for this rank's part `[rows, width]` of the next sum."""
        self._turn ^= 1
        width = self._sizes.width
        return self._buffers[self._turn][: rows * width].view(rows, width)

    def logits(self, rows: int) -> Tensor:
        """The buffer for this rank's part `[rows, share]` of the next logits."""
        return self._buffers[2][: rows * self._pitch].view(rows, self._pitch)[:, : self._sizes.share]

    def add_(self, x: Tensor) -> Tensor:
        """Add the parts of all ranks to `x` `[R, width]` in place."""
        self._run(0, self._turn, x, count=x.numel() // 8)
        return x

    def add_norm_(self, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        """Do what `add_` does, and return the RMS norm of the sum with `gain` `[width]`."""
        normed = torch.empty_like(x)
        self._run(0, self._turn, x, count=len(x) * _THREADS, gain=gain, normed=normed, eps=eps)
        return normed

    def broadcast(self, rows: int) -> Tensor:
        """Rank 0's part `[rows, width]`."""
        out = torch.empty(rows, self._sizes.width, dtype=self._dtype, device=self._memory.device)
        self._run(1, self._turn, out, count=out.numel() // 8)
        return out

    def gather(self, rows: int) -> Tensor:
        """The logits `[rows, vocabulary]` of all ranks on rank 0; undefined on other ranks."""
        sizes = self._sizes
        out = torch.empty(rows, sizes.vocabulary, dtype=self._dtype, device=self._memory.device)
        self._run(2, 2, out, count=rows * self._ranks * sizes.share // 8)
        return out

    def _run(
        self, mode: int, place: int, out: Tensor, *, count: int, gain: Tensor | None = None,
        normed: Tensor | None = None, eps: float = 0.0,
    ) -> None:  # fmt: skip
        sizes = self._sizes
        run = kernel(
            "collectives", "collective", ("BF16", int(self._dtype == torch.bfloat16)), ("MODE", mode),
            ("WIDTH", self._pitch if mode == 2 else sizes.width), ("SHARE", sizes.share),
            ("VOCABULARY", sizes.vocabulary), ("RANK", self._rank), ("RANKS", self._ranks),
            ("NORM", int(gain is not None)), ("EPS", eps), ("THREADS", _THREADS),
        )  # fmt: skip
        blocks = min(_BLOCKS, -(-count // _THREADS))
        run(
            (blocks, 1, 1), _THREADS,
            [
                self._parts[place], self._parts[3], self._meetings, out, out if gain is None else gain,
                out if normed is None else normed, self._alone, len(out),
            ],
        )  # fmt: skip
