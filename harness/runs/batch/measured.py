"""What one timed batch gives, however it was run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.engines.base import EngineVariant
from harness.errors import EngineError
from harness.schema.results import OfflineResult
from harness.schema.settings import OfflineSettings


@dataclass(frozen=True)
class Measured:
    """Seconds from handing over the batch to having all of it, and the tokens generated for each prompt."""

    total_s: float
    output_tokens: Sequence[int]


def result(
    measured: Measured, engine_variant: EngineVariant, label: str, repeat: int, settings: OfflineSettings
) -> OfflineResult:
    """The row of the results.

    Raises:
        EngineError: a prompt got another number of tokens than was asked for, or an answer is missing.
    """
    if len(measured.output_tokens) != settings.num_prompts:
        raise EngineError(
            f"{label} answered {len(measured.output_tokens)} of {settings.num_prompts} prompts", "see its log"
        )
    asked = settings.output_len
    low = asked if settings.ignore_eos else 1
    if wrong := [count for count in measured.output_tokens if not low <= count <= asked]:
        raise EngineError(
            f"{label} generated a wrong number of tokens for {len(wrong)} of {settings.num_prompts} prompts: "
            f"{wrong[0]} instead of {asked}",
            "leave this engine out, or look at its log",
        )
    prompt_tokens = settings.num_prompts * settings.input_len
    completion_tokens = sum(measured.output_tokens)
    return OfflineResult(
        engine=engine_variant.ref.name,
        variant=engine_variant.ref.variant,
        label=label,
        repeat=repeat,
        num_prompts=settings.num_prompts,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_s=measured.total_s,
        req_per_s=settings.num_prompts / measured.total_s,
        output_tok_per_s=completion_tokens / measured.total_s,
        total_tok_per_s=(prompt_tokens + completion_tokens) / measured.total_s,
    )
