"""The engines of a batch: which are asked in a process of their own, and which through their server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from harness.engines.base import EngineVariant
from harness.engines.registry import LOCAL
from harness.schema.results import Skipped


def batch_variants(engine_variants: Iterable[EngineVariant]) -> list[EngineVariant]:
    """Return the variants as they are measured: in their own process, or both ways under two labels."""
    measured = []
    for engine_variant in engine_variants:
        engine = LOCAL.get(engine_variant.ref.name)
        if engine is None or not engine.batches_by_server:
            measured.append(replace(engine_variant, in_process=True))
            continue
        measured.append(engine_variant)
        if not _only_served(engine_variant):
            label = engine_variant.label
            label = f"{label[:-1]}, in-process)" if label.endswith(")") else f"{label} (in-process)"
            measured.append(replace(engine_variant, label=label, in_process=True))
    return measured


def skipped_of_batch(engine_variants: Iterable[EngineVariant], *, mixed: bool) -> list[Skipped]:
    """Return the variants that cannot run a batch, each with the reason.

    Args:
        mixed: The prompts or the answers of the batch differ in length.
    """
    skipped = []
    for engine_variant in engine_variants:
        engine, ref = LOCAL.get(engine_variant.ref.name), engine_variant.ref
        if engine is None or not engine.in_process:
            skipped.append(engine_variant.skipped("it has no in-process API here", "use `bench online`"))
        elif mixed and not engine.mixes_lengths:
            one_length = "its in-process API takes prompts and answers of one length alone"
            hint = "give --input-len and --output-len one number each"
            skipped.append(engine_variant.skipped(one_length, hint))
        elif engine_variant.in_process and (reason := _only_served(engine_variant)):
            hint = f"give it `offline`, as variants in configs/engines/{ref.name}.yaml have it"
            skipped.append(engine_variant.skipped(f"variant {ref.variant} {reason}", hint))
    return skipped


def _only_served(engine_variant: EngineVariant) -> str:
    """Return why a variant means nothing in-process, where it would be the engine as it is; else nothing."""
    variant = engine_variant.variant
    if variant.offline is None:
        return "is not one of offline runs"
    if engine_variant.ref.args or (variant.args and not variant.offline):
        return "has options of its server and none of its in-process API"
    return ""
