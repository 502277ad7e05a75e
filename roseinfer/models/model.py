"""The seam between the engine and a family of models."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from roseinfer.attention.base import Attention
from roseinfer.models.config import ModelConfig


class Model(ABC):
    """Weights on one device in one dtype. `packed`: they lie in the layout of the CPU's matrix kernels."""

    config: ModelConfig
    packed: bool

    @abstractmethod
    def forward(self, tokens: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Hidden states `[T, width]` of `T` tokens of any requests, ids and positions `[T]` int64.

        `attention` knows which token belongs to which request and where its keys and values are kept.
        """

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits `[R, vocab]` of the `R` rows of hidden states that are the last of their request."""
