"""What is measured."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.engines.base import EngineVariant, Missing
from harness.engines.local import LocalEngine
from harness.engines.registry import LOCAL
from harness.schema.results import Skipped


@dataclass(frozen=True, eq=False)
class Entry:
    """One row of the results: an engine variant, and whether it is asked in-process or through its server."""

    engine_variant: EngineVariant
    engine: LocalEngine
    served: bool = False

    @property
    def label(self) -> str:
        return self.engine_variant.label


def make_entries(
    engine_variants: list[EngineVariant], *, mixed: bool = False
) -> tuple[list[Entry], list[Skipped]]:
    """What can be measured here, and what cannot with the reason.

    Args:
        mixed: The prompts or the answers of the batch differ in length.
    """
    entries, skipped = [], []
    for engine_variant in engine_variants:
        engine, ref = LOCAL.get(engine_variant.ref.name), engine_variant.ref
        if engine is None or not engine.in_process:
            skipped.append(engine_variant.skipped("it has no in-process API here", "use `bench online`"))
        elif mixed and not engine.mixes_lengths:
            one_length = "its in-process API takes prompts and answers of one length alone"
            hint = "give --input-len and --output-len one number each"
            skipped.append(engine_variant.skipped(one_length, hint))
        elif isinstance(found := engine.find(), Missing):
            skipped.append(engine_variant.skipped(f"not installed: {found.reason}", found.hint))
        elif engine.batches_by_server:
            entries.append(Entry(engine_variant, engine, served=True))
            if _only_served(engine_variant) is None:
                entries.append(Entry(_in_process(engine_variant), engine))
        elif reason := _only_served(engine_variant):
            hint = f"give it `offline`, as variants in configs/engines/{ref.name}.yaml have it"
            skipped.append(engine_variant.skipped(f"variant {ref.variant} {reason}", hint))
        else:
            entries.append(Entry(engine_variant, engine))
    return entries, skipped


def _only_served(engine_variant: EngineVariant) -> str | None:
    """Why a variant means nothing in-process, where it would be the engine as it is; None where it does."""
    variant = engine_variant.variant
    if variant.offline is None:
        return "is not one of offline runs"
    if engine_variant.ref.args or (variant.args and not variant.offline):
        return "has options of its server and none of its in-process API"
    return None


def _in_process(engine_variant: EngineVariant) -> EngineVariant:
    """The same engine, labelled `NAME (in-process)` or `NAME (VARIANT, in-process)`."""
    label = engine_variant.label
    label = f"{label[:-1]}, in-process)" if label.endswith(")") else f"{label} (in-process)"
    return replace(engine_variant, label=label)
