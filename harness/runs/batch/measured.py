"""What one timed batch gives, however it was run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from harness.engines.base import EngineVariant
from harness.errors import EngineError
from harness.metrics.stability import disturbed
from harness.metrics.validity import with_too_brief
from harness.schema.machines import MachineLoad
from harness.schema.results import OfflineResult
from harness.schema.settings import OfflineSettings
from harness.workload import PlannedRequest


@dataclass(frozen=True)
class Measured:
    """Seconds from handing over a batch to having all of it, summed over `batches`, and the tokens generated
    for each prompt of each. `window`: when that began and ended, by this machine's monotonic clock."""

    total_s: float
    output_tokens: Sequence[int]
    batches: int = 1
    window: tuple[float, float] = (-inf, inf)

    def __add__(self, other: Measured) -> Measured:
        counts = (*self.output_tokens, *other.output_tokens)
        window = min(self.window[0], other.window[0]), max(self.window[1], other.window[1])
        return Measured(self.total_s + other.total_s, counts, self.batches + other.batches, window)


def result(
    measured: Measured,
    engine_variant: EngineVariant,
    repeat: int,
    settings: OfflineSettings,
    requests: Sequence[PlannedRequest],
    gpus: int = 0,
    machine: MachineLoad | None = None,
) -> OfflineResult:
    """The row of the results, of an engine on so many GPUs. `machine`: what the machine did meanwhile.

    Raises:
        EngineError: a prompt got another number of tokens than was asked for, or an answer is missing.
    """
    label, prompts = engine_variant.label, settings.num_prompts * measured.batches
    if len(measured.output_tokens) != prompts:
        raise EngineError(
            f"{label} answered {len(measured.output_tokens)} of {prompts} prompts", "see its log"
        )
    asked = [request.output_tokens for request in requests] * measured.batches
    wrong = [
        (count, wanted)
        for count, wanted in zip(measured.output_tokens, asked, strict=True)
        if not (wanted if settings.ignore_eos else 1) <= count <= wanted
    ]
    if wrong:
        raise EngineError(
            f"{label} generated a wrong number of tokens for {len(wrong)} of {prompts} prompts: "
            f"{wrong[0][0]} instead of {wrong[0][1]}",
            "leave this engine out, or look at its log",
        )
    seconds, completion_tokens = measured.total_s, sum(measured.output_tokens)
    prompt_tokens = sum(len(request.prompt) for request in requests)
    total_tokens = prompt_tokens * measured.batches + completion_tokens
    found = OfflineResult(
        engine=engine_variant.ref.name,
        variant=engine_variant.ref.variant,
        label=label,
        repeat=repeat,
        num_prompts=settings.num_prompts,
        batches=measured.batches,
        prompt_tokens=prompt_tokens,
        completion_tokens=round(completion_tokens / measured.batches),
        total_s=seconds / measured.batches,
        req_per_s=prompts / seconds,
        output_tok_per_s=completion_tokens / seconds,
        total_tok_per_s=total_tokens / seconds,
        output_tok_per_s_per_gpu=completion_tokens / seconds / gpus if gpus else None,
        notices=[] if machine is None else disturbed(machine),
    )
    return with_too_brief(found)
