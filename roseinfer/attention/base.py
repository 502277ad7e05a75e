"""The interface between a model and the KV cache of its requests."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from roseinfer.batch import Batch
from roseinfer.kvcache.states import StateRows


class Attention(ABC):
    """Stores keys and values, and computes attention. One instance serves all layers."""

    @abstractmethod
    def begin(self, batch: Batch) -> None:
        """Prepare what all layers of the step share."""

    @property
    @abstractmethod
    def state_rows(self) -> StateRows:
        """The step's rows and the states, for models that have any."""

    @abstractmethod
    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store `k`, `v` and attend causally within each request.

        Args:
            layer: which layer's cache.
            q: `[T, heads, head_dim]`.
            k, v: `[T, kv heads, head_dim]`. Of all three, a token's row is contiguous.

        Returns:
            `[T, heads · head_dim]`.
        """
