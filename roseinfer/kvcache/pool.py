"""The memory of the paged cache: one pool for all layers."""

from __future__ import annotations

import torch
from torch import Tensor

from roseinfer.batch import Ints
from roseinfer.config import ConfigError
from roseinfer.models.config import ModelConfig
from roseinfer.tensors import to_device


class KVPool:
    """Keys and values of `num_blocks` blocks of `block_size` tokens, for every layer.

    Raises ConfigError when the device has no room for them.

    Layout `[layers, 2, num_blocks · block_size, kv heads, head_dim]`: a token's row is contiguous.
    """

    def __init__(
        self, config: ModelConfig, num_blocks: int, block_size: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.num_blocks, self.block_size, self.device = num_blocks, block_size, device
        shape = (config.layers, 2, num_blocks * block_size, config.kv_heads, config.head_dim)
        try:
            self._memory = torch.zeros(shape, device=device, dtype=dtype)
        except RuntimeError as error:  # PyTorch's word for a full memory
            size = num_blocks * block_size * bytes_per_token(config, dtype) / 2**30
            raise ConfigError(
                f"no memory for a KV cache of {size:,.1f} GiB; give fewer --kv-tokens"
            ) from error

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, each `[rows, kv heads, head_dim]`."""
        keys, values = self._memory[index].unbind(0)
        return keys, values

    def copy_blocks(self, sources: Ints, targets: Ints) -> None:
        """Copy whole blocks in every layer, all of them read before any is written."""
        layers, sides, _, *row = self._memory.shape
        blocks = self._memory.view(layers, sides, self.num_blocks, self.block_size, *row)
        source, target = (to_device(side, self.device) for side in (sources, targets))
        blocks[:, :, target] = blocks[:, :, source]


def bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes that one token takes in the pool."""
    return 2 * config.layers * config.kv_heads * config.head_dim * dtype.itemsize
