"""Engines by name."""

from __future__ import annotations

from harness.engines.adapters.llamacpp import Llamacpp
from harness.engines.adapters.openai import OpenAI
from harness.engines.adapters.roseinfer import Roseinfer
from harness.engines.adapters.sglang import Sglang
from harness.engines.adapters.transformers import Transformers
from harness.engines.adapters.trtllm import Trtllm
from harness.engines.adapters.vllm import Vllm
from harness.engines.base import Contender, Engine, Missing
from harness.engines.configured import find_variant
from harness.engines.local import LocalEngine
from harness.schema.settings import DEFAULT_ENGINES, EngineName, EngineRef

#: Engines that this harness starts, in the order in which they are listed.
LOCAL: dict[EngineName, LocalEngine] = {
    engine.name: engine for engine in (Roseinfer(), Vllm(), Sglang(), Trtllm(), Transformers(), Llamacpp())
}


def get_engine(name: EngineName, base_url: str | None = None, api_key_env: str | None = None) -> Engine:
    """The engine of that name; the address and key are those of `openai`.

    Raises:
        UsageError: the address or key cannot be used.
    """
    return OpenAI(base_url, api_key_env) if name == "openai" else LOCAL[name]


def installed_engines() -> list[EngineRef]:
    """roseinfer and every other engine that is installed; DEFAULT_ENGINES where no other is."""
    there = [name for name, engine in LOCAL.items() if not isinstance(engine.find(), Missing)]
    others = [name for name in there if name != "roseinfer"]
    return [EngineRef(name=name) for name in (("roseinfer", *others) if others else DEFAULT_ENGINES)]


def contender(ref: EngineRef) -> Contender:
    """The engine and variant that `NAME@VARIANT` means, with the label under which it is drawn.

    Raises:
        UsageError: unknown variant.
    """
    engine = get_engine(ref.name)
    variant = find_variant(ref.name, ref.variant)
    return Contender(ref, variant, engine.label(variant))
