"""Rotary position embeddings (Su et al., 2021), with the frequency scalings that checkpoints name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from roseinfer.config import ConfigError


def number(name: str, value: Any) -> Any:
    """The `value` that a config gives as `name`. Raises ConfigError unless it is a number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigError(f"the config says {name} {value!r}, which is not a number above 0")
    return value


@dataclass(frozen=True)
class Rope:
    """The rotation frequency of each pair of elements; `kind` is default, linear or llama3. `share` of each
    head is rotated."""

    theta: float = 10_000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    share: float = 1.0

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Rope:
        """From a Hugging Face config, old style (`rope_theta`, `rope_scaling`) or new (`rope_parameters`). As
        in transformers, `rope_scaling` comes first: it is what users add to a config.

        Raises ConfigError for a scaling that is not implemented, and for values that are no numbers.
        """
        settings = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
        kind = settings.get("rope_type", settings.get("type", "default"))
        if kind not in ("default", "linear", "llama3"):
            raise ConfigError(
                f"rope scaling {kind!r} is not supported; roseinfer has: default, linear, llama3"
            )
        share = settings.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0))
        names = {
            "factor": "factor",
            "low_freq_factor": "low_freq_factor",
            "high_freq_factor": "high_freq_factor",
            "original_max_position_embeddings": "original_max_positions",
        }
        fields = {
            field: number(name, settings[name])
            for name, field in names.items()
            if settings.get(name) is not None
        }
        if kind == "llama3" and len(fields) < len(names):
            raise ConfigError(f"rope scaling llama3 needs {', '.join(names)}")
        if kind == "linear" and "factor" not in fields:
            raise ConfigError("rope scaling linear needs factor")
        theta = number("rope_theta", settings.get("rope_theta", raw.get("rope_theta", 10_000.0)))
        return cls(theta=theta, kind=kind, share=number("partial_rotary_factor", share), **fields)

    def order(self, head_dim: int) -> Tensor:
        """The order `[head_dim]` in which a head's elements i and i + head_dim / 2 are a pair of `table`."""
        rotated = self._rotated(head_dim) // 2
        rest = head_dim // 2 - rotated
        first, second, *others = torch.arange(head_dim).split_with_sizes([rotated, rotated, rest, rest])
        return torch.cat((first, others[0], second, others[1]))

    def _rotated(self, head_dim: int) -> int:
        """Elements of a head that are rotated, the first ones of a checkpoint's."""
        return int(head_dim * self.share)

    def frequencies(self, head_dim: int) -> Tensor:
        """Radians per position of each pair that is rotated, float32."""
        rotated = self._rotated(head_dim)
        frequencies = self.theta ** -(torch.arange(0, rotated, 2).float() / rotated)
        if self.kind == "linear":
            return frequencies / self.factor
        if self.kind == "llama3":
            return self._llama3(frequencies)
        return frequencies

    def _llama3(self, frequencies: Tensor) -> Tensor:
        """Low frequencies are divided by `factor`, high ones are kept, those between are interpolated.

        From meta-llama/llama-models, `apply_scaling`.
        """
        turns = self.original_max_positions * frequencies / (2 * math.pi)
        smooth = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        smooth = smooth.clamp(0, 1)
        return (1 - smooth) * frequencies / self.factor + smooth * frequencies

    def table(self, positions: int, head_dim: int) -> Tensor:
        """cos and sin of every position's angles, `[positions, 2, head_dim / 2]` float32; those of pairs that
        are not rotated are 0."""
        angles = torch.arange(positions).float()[:, None] * self.frequencies(head_dim)
        angles = F.pad(angles, (0, head_dim // 2 - angles.shape[1]))
        return torch.stack((angles.cos(), angles.sin()), dim=1)
