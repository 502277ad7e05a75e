"""Communication between the tensor-parallel ranks of a model on several GPUs of one machine: see Ranks."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from roseinfer.kernels.cuda import stream
from roseinfer.kernels.cuda.collectives import PeerMemory, PeerSizes
from roseinfer.kernels.triton.embed import embed_rows
from roseinfer.kernels.triton.rms_norm import add_rms_norm_
from roseinfer.models.linear import Adds, Linear
from roseinfer.models.ranks import Ranks
from roseinfer.models.shard import Shard

#: With at least this many rows, more than two ranks use NCCL's all-reduce, in which each reads less from its
#: peers. An estimate: not measured with more than two GPUs. Two use roseinfer's for any number of rows, which
#: is faster with up to 1,024 on H200s, 2026-11-23 (docs/notes/h200-llama.md).
_MANY_ROWS = 512
#: roseinfer's kernels read peer memory, and need no NVLink multicast.
_NO_MULTICAST = "TORCH_SYMM_MEM_DISABLE_MULTICAST"
#: Whether a thread of NCCL's process group asks the store every second if another rank wants a dump. The
#: store's file is gone once the ranks are connected: the thread would wait for it, and the end of the process
#: for the thread.
_NO_DUMP = "TORCH_NCCL_DUMP_ON_TIMEOUT"
#: PyTorch's type annotations lack most of what is used here.
_dist: Any = dist


class CudaRanks(Ranks):
    """One process for each GPU; all make the same calls in the same order, also within captured graphs.

    Rank 0 alone looks up embeddings and samples: it broadcasts hidden states and gathers logits.
    """

    def __init__(self, shard: Shard, vocab_size: int, width: int, dtype: torch.dtype) -> None:
        self._shard, self._vocab_size, self._width, self._dtype = shard, vocab_size, width, dtype
        self._memory: PeerMemory | None = None
        self._given_up = False
        self._tokens = self._rows = 0

    def room(self, tokens: int, rows: int) -> None:
        self._tokens, self._rows = tokens, rows

    def connect(self, file: Path, timeout_s: float) -> None:
        os.environ.setdefault(_NO_MULTICAST, "1")
        os.environ.setdefault(_NO_DUMP, "0")
        shard, device = self._shard, torch.device("cuda", torch.cuda.current_device())
        store, timeout = _dist.FileStore(str(file), shard.ranks), timedelta(seconds=timeout_s)
        store.set_timeout(timeout)
        _dist.init_process_group(
            "nccl", store=store, rank=shard.rank, world_size=shard.ranks, timeout=timeout
        )
        if shard.ranks > 2:
            _dist.all_reduce(torch.zeros(1, device=device))  # connects NCCL, while `file` is there
        share = shard.vocabulary_share(self._vocab_size)
        sizes = PeerSizes(self._tokens, self._width, self._rows, share, self._vocab_size)
        self._memory = PeerMemory(sizes, shard.rank, shard.ranks, _dist.group.WORLD, self._dtype, device)
        if self._given_up:
            self._memory.give_up()

    def give_up(self) -> None:
        self._given_up = True
        if self._memory is not None:
            self._memory.give_up()

    @property
    def memory(self) -> PeerMemory:
        assert self._memory is not None, "the ranks are not connected"
        return self._memory

    def own_rows(self, table: Tensor) -> Tensor:
        return table[: self._shard.vocabulary_share(self._vocab_size)] if self._shard.rank == 0 else table

    def embed(self, tokens: Tensor, table: Tensor) -> Tensor:
        """Embed `tokens` as Ranks does; on ranks other than 0 they are not read."""
        part = self.memory.part(len(tokens))
        if self._shard.rank == 0:
            torch.index_select(table, 0, tokens, out=part)
        return self.memory.broadcast(len(tokens))

    def embed_last(self, last: Tensor, rows: Tensor, table: Tensor) -> Tensor:
        """Embed the tokens `last[rows]`: see `embed_rows`."""
        part = self.memory.part(len(rows))
        if self._shard.rank == 0:
            embed_rows(last, rows, table, part)
        return self.memory.broadcast(len(rows))

    def add(self, layer: Adds, x: Tensor, residual: Tensor) -> Tensor:
        """Add the ranks' products of `x` `[rows, inputs]` in place in `residual` `[rows, width]`."""
        assert isinstance(layer, Linear)
        part = self._product(layer, x)
        if self._by_nccl(part):
            return residual.add_(part)
        return self.memory.add_(residual)

    def add_norm(self, linear: Linear, x: Tensor, residual: Tensor, gain: Tensor, eps: float) -> Tensor:
        """Do what `add` does, and return the RMS norm of the result with `gain` `[out]`."""
        return self.add_part_norm(self._product(linear, x), residual, gain, eps)

    def part(self, rows: int) -> Tensor:
        """Memory for this rank's part of the next sum, `[rows, out]`."""
        return self.memory.part(rows)

    def add_part_norm(self, part: Tensor, residual: Tensor, gain: Tensor, eps: float) -> Tensor:
        """Do what `add_norm` does where this rank has written its `part` `[rows, width]`."""
        if self._by_nccl(part):
            return add_rms_norm_(residual, part[None], gain, eps)
        return self.memory.add_norm_(residual, gain, eps)

    def logits(self, linear: Linear, x: Tensor) -> Tensor:
        """Logits of the whole vocabulary, `[R, vocab]`, on rank 0; undefined on other ranks."""
        part = self.memory.logits(len(x))
        torch.mm(x, linear.weight.t(), out=part[:, : len(linear.weight)])
        return self.memory.gather(len(x))

    def _product(self, linear: Linear, x: Tensor) -> Tensor:
        part = self.part(len(x))
        if stream.takes(x, linear.weight):
            return stream.product(x, linear.weight, linear.bias, scales=linear.scales, out=part)
        if linear.scales is not None:
            return part.copy_(linear(x))
        torch.mm(x, linear.weight.t(), out=part)
        return part if linear.bias is None else part.add_(linear.bias)

    def _by_nccl(self, part: Tensor) -> bool:
        """All-reduce `part` in place with NCCL where that is faster. Returns whether it has."""
        if self._shard.ranks == 2 or len(part) < _MANY_ROWS:
            return False
        _dist.all_reduce(part)
        return True
