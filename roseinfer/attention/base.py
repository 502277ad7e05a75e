"""The interface between a model and the KV cache of its requests."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from roseinfer.batch import Batch


class Attention(ABC):
    """Stores keys and values, and computes attention. One instance serves all layers."""

    @abstractmethod
    def begin(self, batch: Batch) -> None:
        """Prepare what all layers of the step share."""

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
