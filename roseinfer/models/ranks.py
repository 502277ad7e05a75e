"""Communication between a model's tensor-parallel ranks: sums of partial results, logits of all of them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from roseinfer.models.linear import Adds
from roseinfer.models.shard import Shard
from roseinfer.tracing.ranges import named_range

#: PyTorch's type annotations lack most of what is used here.
_c10d: Any = dist


def is_missing(error: RuntimeError) -> bool:
    """Return whether `error` was raised because another rank has ended or does not respond."""
    return "gloo" in str(error)


class Ranks:
    """A single process, which has the whole model; subclasses communicate."""

    def room(self, tokens: int, rows: int) -> None:
        """Set the most tokens, and rows of logits, of a step. Called before `connect`."""

    def connect(self, file: Path, timeout_s: float) -> None:
        """Wait for the other ranks, which pass the same `file`; it must not exist before. From then on no
        rank is waited for longer than `timeout_s` seconds."""

    def give_up(self) -> None:
        """Stop waiting for other ranks, on the GPU too. Results are invalid from now on."""

    def own_rows(self, table: Tensor) -> Tensor:
        """The rows of the embedding table `[vocab, width]` for the rank's part of the vocabulary, of which it
        makes logits."""
        return table

    def embed(self, tokens: Tensor, table: Tensor) -> Tensor:
        """Embeddings `[T, width]` of the ids `tokens` `[T]`. `table`: what the rank has of the embedding
        table."""
        return F.embedding(tokens, table)

    def add(self, layer: Adds, x: Tensor, residual: Tensor) -> Tensor:
        """`residual` plus the sum of `layer` of `x` over all ranks, `[T, width]`. A linear layer takes the
        rank's part of x, an MLP all of it."""
        return layer.add(x, residual)

    def whole(self, logits: Tensor) -> Tensor:
        """Logits `[R, vocab]`, gathered from those `[R, part]` of each rank's part of the vocabulary."""
        return logits


#: Without tensor parallelism.
ALONE = Ranks()


class GlooRanks(Ranks):
    """Processes of one machine that communicate with Gloo over its loopback interface; all make the same
    calls in the same order.

    Every method raises RuntimeError when a rank has ended, or does not respond within the `timeout_s` of
    `connect`: see `is_missing`.
    """

    def __init__(self, shard: Shard, vocab_size: int) -> None:
        self._shard, self._vocab_size = shard, vocab_size
        self._first, self._end = shard.vocabulary(vocab_size)

    def connect(self, file: Path, timeout_s: float) -> None:
        options = _c10d.ProcessGroupGloo._Options()
        options._devices = [_c10d.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=timeout_s)
        store = _c10d.FileStore(str(file), self._shard.ranks)
        self._group = _c10d.ProcessGroupGloo(store, self._shard.rank, self._shard.ranks, options)
        self._group.barrier().wait()

    def embed(self, tokens: Tensor, table: Tensor) -> Tensor:
        here = (tokens >= self._first) & (tokens < self._end)
        rows = F.embedding(torch.where(here, tokens - self._first, 0), table)
        return self._sum(rows.masked_fill_(~here[:, None], 0))

    def add(self, layer: Adds, x: Tensor, residual: Tensor) -> Tensor:
        return self._sum(layer.add(x, residual) if self._shard.rank == 0 else layer(x))

    def whole(self, logits: Tensor) -> Tensor:
        """Return all logits `[rows, vocab]` on rank 0, which samples; on other ranks `logits` unchanged."""
        if not len(logits):
            return logits.new_empty(0, self._vocab_size)
        share = self._shard.vocabulary_share(self._vocab_size)
        padded = F.pad(logits, (0, share - logits.shape[1])).contiguous()
        options = _c10d.GatherOptions()
        options.rootRank = 0
        if self._shard.rank:
            with named_range("roseinfer.ranks.gather"):
                self._group.gather([], [padded], options).wait()
            return logits
        parts = [torch.empty_like(padded) for _ in range(self._shard.ranks)]
        with named_range("roseinfer.ranks.gather"):
            self._group.gather([parts], [padded], options).wait()
        return torch.cat(parts, 1)[:, : self._vocab_size]

    def _sum(self, part: Tensor) -> Tensor:
        """All-reduce `part` in place."""
        part = part.contiguous()
        if len(part):
            with named_range("roseinfer.ranks.all_reduce"):
                self._group.allreduce([part]).wait()
        return part
