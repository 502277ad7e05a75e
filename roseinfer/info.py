"""The resolved settings of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import msgspec

from roseinfer.config import EngineConfig
from roseinfer.request.limits import Limits


class RunnerInfo(msgspec.Struct, frozen=True):
    """The parts that compute a step. `cuda_graph`: decode batch sizes that have a graph; `decode_parts`:
    those of them that are computed in parts. `prompt_logprobs`: whether it can give them. A switch that has
    no effect here is off."""

    attention: str
    prefill_backend: str
    cuda_graph: tuple[int, ...] = ()
    pinned_staging: bool = False
    decode_parts: tuple[int, ...] = ()
    prompt_logprobs: bool = False


class ModelInfo(msgspec.Struct, frozen=True):
    """`linear` names the implementation of linear layers; `fused_ops`: whether kernels are fused;
    `state_bytes`: of a running request's recurrent states."""

    dtype: str
    kv_cache_dtype: str
    fused_ops: bool
    linear: str
    state_bytes: int = 0


class DraftCounts(msgspec.Struct, frozen=True, array_like=True):
    """Speculation since the start: how often tokens were drafted for a request, how many, and how often the
    first, the second, … of them was accepted."""

    drafts: int
    tokens: int
    accepted: tuple[int, ...]

    @classmethod
    def sum(cls, counts: Sequence[DraftCounts]) -> DraftCounts:
        """Sum of the counts of several engines."""
        accepted = zip(*(each.accepted for each in counts), strict=True)
        drafts, tokens = (sum(getattr(each, name) for each in counts) for name in ("drafts", "tokens"))
        return cls(drafts, tokens, tuple(map(sum, accepted)))

    @property
    def accepted_tokens(self) -> int:
        """Drafted tokens that were accepted."""
        return sum(self.accepted)


class EngineInfo(msgspec.Struct, frozen=True):
    """`config` has no `auto` and no None for what has a default."""

    config: EngineConfig
    limits: Limits
    model: ModelInfo
    runner: RunnerInfo

    @property
    def spin_s(self) -> float:
        """Seconds that processes without work busy-wait before they sleep."""
        return (self.config.spin_ms or 0.0) / 1e3

    def settings(self) -> dict[str, object]:
        """All settings by name; what is in use replaces the switch that asked for it."""
        settings = asdict(self.config)
        for part in (self.limits, self.model, self.runner):
            settings |= msgspec.structs.asdict(part)
        return settings

    def describe(self) -> str:
        """One line that says what is in use."""
        return " ".join(f"{name}={value}" for name, value in self.settings().items())
