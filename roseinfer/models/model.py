"""The interface between the engine and a family of models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from roseinfer.attention.base import Attention
from roseinfer.models.config import ModelConfig
from roseinfer.models.linear import Linear
from roseinfer.models.mlp import Experts
from roseinfer.models.ranks import ALONE, Ranks


class Model(ABC):
    """Weights on one device in one dtype; `linear` is the kind of their linear layers."""

    config: ModelConfig
    linear: type[Linear]
    #: Communication with the other tensor-parallel ranks.
    ranks: Ranks = ALONE
    #: Whether it uses fused kernels.
    fused: ClassVar[bool] = False
    #: Decode batch size → number of parts that are computed on parallel streams; 1 where it is not listed.
    decode_parts: ClassVar[Mapping[int, int]] = {}
    #: Whether prefill and decode rows are best computed in one `forward`.
    mixes: ClassVar[bool] = False
    #: Whether its decode attention has other launch configurations for longer contexts.
    by_context: ClassVar[bool] = False

    @property
    def mixtures(self) -> Sequence[Experts]:
        """Mixtures of experts, of all layers that have one."""
        return ()

    @property
    def rows_alone(self) -> bool:
        """True if, apart from attention, it is batch-invariant: a token's result is the same, bit for bit, in
        every batch."""
        return self.linear.rows_alone

    @abstractmethod
    def forward(self, tokens: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Hidden states `[T, width]` of `T` tokens of any requests, ids and positions `[T]` int64.

        `attention` knows which token belongs to which request and where its keys and values are kept.
        """

    def forward_last(self, last: Tensor, rows: Tensor, lengths: Tensor, attention: Attention) -> Tensor:
        """`forward` of decode rows, one a request: the tokens `last[rows]` at positions `lengths - 1`; last
        `[running rows]` int64, rows and lengths `[R]` int32."""
        return self.forward(last.index_select(0, rows), (lengths - 1).clamp_(min=0), attention)

    def choose(self, hidden: Tensor, rows: Tensor, last: Tensor, out: Tensor) -> Tensor:
        """Write the greedy next tokens (argmax) of hidden states `[R, width]` to `out` `[R]` int64 and to
        `last[rows]`.

        Returns the logits `[R, vocab]`.
        """
        logits = self.logits(hidden)
        torch.argmax(logits, -1, out=out)
        last.index_copy_(0, rows.long(), out)
        return logits

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits `[R, vocab]` of the `R` rows of hidden states that are the last of their request."""
