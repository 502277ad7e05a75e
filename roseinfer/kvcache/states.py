"""The memory of recurrent states, of models that have some beside keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from roseinfer.batch import Segment
from roseinfer.config import ConfigError


@dataclass(frozen=True)
class StateShape:
    """A request's state, float32: in each of `layers` a matrix for each head, `[heads, key_dim, value_dim]`,
    and the last `taps - 1` inputs of a convolution, `[taps - 1, channels]`."""

    layers: int
    heads: int
    key_dim: int
    value_dim: int
    channels: int
    taps: int

    @property
    def bytes(self) -> int:
        """Bytes of a request's state in all layers."""
        layer = self.heads * self.key_dim * self.value_dim + (self.taps - 1) * self.channels
        return 4 * self.layers * layer


class States:
    """The states of `rows` running rows. A row's is that of the request that runs there: it begins with the
    request's first chunk, so that nothing is to be cleared, and has no copy when the request leaves the row.

    Raises ConfigError when the device has no room for them.
    """

    def __init__(self, shape: StateShape, rows: int, device: torch.device) -> None:
        try:
            self._matrices = torch.zeros(
                shape.layers, rows, shape.heads, shape.key_dim, shape.value_dim, device=device
            )
            self._inputs = torch.zeros(shape.layers, rows, shape.taps - 1, shape.channels, device=device)
        except RuntimeError as error:  # PyTorch's out-of-memory error
            raise ConfigError(
                f"no memory for {rows} states of {shape.bytes / 2**20:,.1f} MiB; give fewer "
                "--max-active-requests"
            ) from error

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """A layer's matrices `[rows, heads, key_dim, value_dim]` and inputs `[rows, taps - 1, channels]`."""
        return self._matrices[index], self._inputs[index]


@dataclass(frozen=True)
class StateRows:
    """A step as layers with states see it: prefill segments, then decode rows, one of each running row in
    `decodes` `[D]`."""

    states: States
    segments: tuple[Segment, ...]
    decodes: Tensor | None
