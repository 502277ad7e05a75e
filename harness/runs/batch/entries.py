"""What is measured."""

from __future__ import annotations

from dataclasses import dataclass

from harness.engines.base import EngineVariant, Missing
from harness.engines.local import LocalEngine
from harness.engines.registry import LOCAL
from harness.schema.results import Skipped

#: The engine that is also measured through its server's process.
ALSO_SERVED = "roseinfer"


@dataclass(frozen=True, eq=False)
class Entry:
    """One row of the results: an engine variant, and whether it is asked in-process or through its server."""

    engine_variant: EngineVariant
    engine: LocalEngine
    label: str
    served: bool = False


def make_entries(engine_variants: list[EngineVariant]) -> tuple[list[Entry], list[Skipped]]:
    """What can be measured here, and what cannot with the reason."""
    entries, skipped = [], []
    for engine_variant in engine_variants:
        engine, ref = LOCAL.get(engine_variant.ref.name), engine_variant.ref

        def skip(reason: str, hint: str, engine_variant: EngineVariant = engine_variant) -> None:
            skipped.append(
                Skipped(
                    engine=engine_variant.ref.name,
                    variant=engine_variant.ref.variant,
                    label=engine_variant.label,
                    reason=reason,
                    hint=hint,
                )
            )

        if engine is None or not engine.in_process:
            skip("it has no in-process API here", "use `bench online`")
        elif isinstance(found := engine.find(), Missing):
            skip(f"not installed: {found.reason}", found.hint)
        elif ref.name == ALSO_SERVED:
            entries.append(Entry(engine_variant, engine, engine_variant.label, served=True))
            if engine_variant.variant.offline is not None:
                entries.append(Entry(engine_variant, engine, _in_process(engine_variant.label)))
        elif engine_variant.variant.offline is None:
            skip(
                f"variant {ref.variant} is not one of offline runs",
                f"see configs/engines/{ref.name}.yaml",
            )
        else:
            entries.append(Entry(engine_variant, engine, engine_variant.label))
    return entries, skipped


def _in_process(label: str) -> str:
    """`roseinfer (in-process)`, `roseinfer (prefix cache, in-process)`."""
    return f"{label[:-1]}, in-process)" if label.endswith(")") else f"{label} (in-process)"
