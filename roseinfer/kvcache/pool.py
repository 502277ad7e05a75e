"""The memory of the paged KV cache: one pool for all layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from roseinfer.batch import Ints
from roseinfer.config import ConfigError
from roseinfer.e4m3 import movable
from roseinfer.kvcache.states import States, StateShape
from roseinfer.tensors import to_device


@dataclass(frozen=True)
class KVShape:
    """A token's entry in the KV cache: in each of `layers` a key and a value, `[kv_heads, head_dim]` each.

    `state`: what a request has beside its tokens', in models with recurrent layers."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    state: StateShape | None = None

    @property
    def bytes_per_token(self) -> int:
        """Bytes of a token's keys and values in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


class KVPool:
    """Keys and values of `num_blocks` blocks of `block_size` tokens, for every layer, and the states of
    `rows` running rows, for models that have any.

    Raises ConfigError when the device has no room for them.

    Layout `[layers, 2, num_blocks · block_size, kv heads, head_dim]`: a token's row is contiguous.
    """

    def __init__(
        self, shape: KVShape, num_blocks: int, block_size: int, device: torch.device, rows: int = 1
    ) -> None:
        self.shape, self.num_blocks, self.block_size, self.device = shape, num_blocks, block_size, device
        sizes = (shape.layers, 2, num_blocks * block_size, shape.kv_heads, shape.head_dim)
        try:
            self._memory = torch.zeros(sizes, device=device, dtype=shape.dtype)
        except RuntimeError as error:  # PyTorch's out-of-memory error
            size = num_blocks * block_size * shape.bytes_per_token / 2**30
            raise ConfigError(
                f"no memory for a KV cache of {size:,.1f} GiB; give fewer --kv-tokens"
            ) from error

        self.states = None if shape.state is None else States(shape.state, rows, device)

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, each `[rows, kv heads, head_dim]`."""
        keys, values = self._memory[index].unbind(0)
        return keys, values

    def copy_blocks(self, sources: Ints, targets: Ints) -> None:
        """Copy blocks `sources` to `targets`, ids `[n]`, in every layer; all sources are read before any
        target is written."""
        layers, sides, _, *row = self._memory.shape
        blocks = movable(self._memory).view(layers, sides, self.num_blocks, self.block_size, *row)
        source, target = (to_device(side, self.device) for side in (sources, targets))
        blocks[:, :, target] = blocks[:, :, source]
