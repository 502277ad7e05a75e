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


#: Scalings of frequencies, all by a `factor`.
_SCALINGS = ("linear", "dynamic", "yarn", "llama3")
#: The names of numbers in configs, by field of Rope.
_NUMBERS = {
    "factor": "factor", "low_freq_factor": "low_freq_factor", "high_freq_factor": "high_freq_factor",
    "original_max_positions": "original_max_position_embeddings", "beta_fast": "beta_fast",
    "beta_slow": "beta_slow", "attention_factor": "attention_factor",
}  # fmt: skip
#: What multiplies yarn's growth of attention, and what divides it, where a config does not say both.
_MSCALES = {"mscale": 1.0, "mscale_all_dim": 0.0}
_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_positions")


@dataclass(frozen=True)
class Rope:
    """The rotation frequency of each pair of elements; `kind` is default or one of the scalings. `share` of
    each head is rotated, and multiplied by `attention_factor`."""

    theta: float = 10_000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True
    share: float = 1.0

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Rope:
        """From a Hugging Face config, old style (`rope_theta`, `rope_scaling`) or new (`rope_parameters`). As
        in transformers, `rope_scaling` comes first: it is what users add to a config.

        Raises ConfigError for a scaling that is not implemented, and for values that are no numbers.
        """
        settings = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
        kind = settings.get("rope_type", settings.get("type", "default"))
        if kind not in ("default", *_SCALINGS):
            raise ConfigError(
                f"rope scaling {kind!r} is not supported; roseinfer has: default, {', '.join(_SCALINGS)}"
            )
        share = settings.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0))
        fields = {
            field: number(name, settings[name])
            for field, name in _NUMBERS.items()
            if settings.get(name) is not None
        }
        if kind == "llama3" and not {*_LLAMA3} <= {*fields}:
            raise ConfigError(f"rope scaling llama3 needs {', '.join(_NUMBERS[field] for field in _LLAMA3)}")
        attention = fields.pop("attention_factor", None)
        if kind in ("dynamic", "yarn"):
            positions = number("max_position_embeddings", raw["max_position_embeddings"])
            if kind == "dynamic" or "original_max_positions" not in fields:
                fields["original_max_positions"] = positions
        if kind == "yarn":
            factor = fields.setdefault("factor", positions / fields["original_max_positions"])
            fields["attention_factor"] = attention or _attention_factor(settings, factor)
        if kind in _SCALINGS and "factor" not in fields:
            raise ConfigError(f"rope scaling {kind} needs factor")
        theta = number("rope_theta", settings.get("rope_theta", raw.get("rope_theta", 10_000.0)))
        truncate = bool(settings.get("truncate", True))
        share = number("partial_rotary_factor", share)
        return cls(theta=theta, kind=kind, share=share, truncate=truncate, **fields)

    def reach(self, positions: int) -> int:
        """Positions of a model whose config has `positions` as max_position_embeddings: with dynamic and
        yarn, those of its training times `factor`, if these are more."""
        if self.kind not in ("dynamic", "yarn"):
            return positions
        return max(positions, int(self.original_max_positions * self.factor))

    def order(self, head_dim: int) -> Tensor:
        """The order `[head_dim]` in which a head's elements i and i + head_dim / 2 are a pair of `table`."""
        rotated = self._rotated(head_dim) // 2
        rest = head_dim // 2 - rotated
        first, second, *others = torch.arange(head_dim).split_with_sizes([rotated, rotated, rest, rest])
        return torch.cat((first, others[0], second, others[1]))

    def _rotated(self, head_dim: int) -> int:
        """Elements of a head that are rotated, the first ones of a checkpoint's."""
        return int(head_dim * self.share)

    def frequencies(self, head_dim: int, positions: int = 0) -> Tensor:
        """Radians per position of each pair that is rotated, float32. Those of dynamic are for `positions`
        tokens (NTK scaling), if they are more than the model was trained with."""
        rotated, theta = self._rotated(head_dim), self.theta
        if self.kind == "dynamic":
            longer = max(positions / self.original_max_positions, 1.0)
            theta *= (self.factor * longer - (self.factor - 1)) ** (rotated / (rotated - 2))
        frequencies = theta ** -(torch.arange(0, rotated, 2).float() / rotated)
        if self.kind == "linear":
            return frequencies / self.factor
        if self.kind == "llama3":
            return self._llama3(frequencies)
        if self.kind == "yarn":
            return self._yarn(frequencies, rotated)
        return frequencies

    def _llama3(self, frequencies: Tensor) -> Tensor:
        """Low frequencies are divided by `factor`, high ones are kept, those between are interpolated.

        From meta-llama/llama-models, `apply_scaling`.
        """
        turns = self.original_max_positions * frequencies / (2 * math.pi)
        smooth = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        smooth = smooth.clamp(0, 1)
        return (1 - smooth) * frequencies / self.factor + smooth * frequencies

    def _yarn(self, frequencies: Tensor, rotated: int) -> Tensor:
        """Frequencies that turn more than `beta_fast` times in the training's positions are kept, those that
        turn less than `beta_slow` times are divided by `factor`; between, it is interpolated by their index
        (Peng et al., 2023)."""
        trained, log_theta = self.original_max_positions, math.log(self.theta)
        first, last = (
            rotated * math.log(trained / (turns * 2 * math.pi)) / (2 * log_theta)
            for turns in (self.beta_fast, self.beta_slow)
        )
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, rotated - 1)
        ramp = ((torch.arange(rotated // 2).float() - first) / ((last - first) or 0.001)).clamp(0, 1)
        return frequencies / self.factor * ramp + frequencies * (1 - ramp)

    def table(self, positions: int, head_dim: int) -> Tensor:
        """cos and sin of every position's angles, `[positions, 2, head_dim / 2]` float32, times
        `attention_factor`; pairs that are not rotated have 1 and 0."""
        angles = torch.arange(positions).float()[:, None] * self.frequencies(head_dim, positions)
        rest = head_dim // 2 - angles.shape[1]
        cos, sin = (side * self.attention_factor for side in (angles.cos(), angles.sin()))
        return torch.stack((F.pad(cos, (0, rest), value=1.0), F.pad(sin, (0, rest))), dim=1)


def _attention_factor(settings: dict[str, Any], factor: float) -> float:
    """yarn's attention factor, where a config does not give it, as in transformers."""
    both = settings.get("mscale") and settings.get("mscale_all_dim")
    of, by = (number(name, settings[name]) if both else other for name, other in _MSCALES.items())
    growth = 0.1 * math.log(max(factor, 1.0))
    return float((of * growth + 1) / (by * growth + 1))
