"""Engines by name."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint
from typing import Protocol, TypeVar

from harness.engines.adapters.openai import OpenAI
from harness.engines.base import Engine, EngineVariant, Installation, Missing
from harness.engines.local import LocalEngine
from harness.engines.running.address import Address
from harness.engines.variants import check_name, engine_points, find_variant
from harness.errors import UsageError
from harness.plugins import describe, load_plugin
from harness.schema.setting_types import DEFAULT_ENGINES, RUNNING_SERVER, EngineName, EngineRef


class Labelled(Protocol):
    """A record about one engine variant."""

    @property
    def engine(self) -> EngineName: ...
    @property
    def label(self) -> str: ...


Record = TypeVar("Record", bound=Labelled)


def _load(point: EntryPoint) -> Engine:
    """Make an engine. Raises UsageError when the entry point names no class of one."""
    kind, hint = load_plugin(point), "correct or uninstall its package"
    if not (isinstance(kind, type) and issubclass(kind, Engine)):
        raise UsageError(f"{describe(point)} is not a subclass of harness.engines.base.Engine", hint)
    if getattr(kind, "name", None) != point.name:
        raise UsageError(f"{describe(point)} has another name in its class", hint)
    needed = ("display", "distributions", "install") if issubclass(kind, LocalEngine) else ("display",)
    if absent := [attribute for attribute in needed if not hasattr(kind, attribute)]:
        raise UsageError(f"{describe(point)} has no {' and no '.join(absent)}", hint)
    try:
        return kind()
    except Exception as error:  # whatever somebody else's class raises, such as that a method is missing
        raise UsageError(f"{describe(point)} cannot be used: {error}", hint) from error


def _load_all() -> tuple[dict[EngineName, Engine], dict[EngineName, UsageError]]:
    engines: dict[EngineName, Engine] = {}
    broken: dict[EngineName, UsageError] = {}
    for name, point in engine_points().items():
        try:
            engines[name] = _load(point)
        except UsageError as error:
            broken[name] = error
    return engines, broken


#: Every engine by name, and why others cannot be used.
ENGINES, BROKEN = _load_all()

#: Those that this harness starts.
LOCAL: dict[EngineName, LocalEngine] = {
    name: engine for name, engine in ENGINES.items() if isinstance(engine, LocalEngine)
}


def is_ours(name: EngineName, label: str) -> bool:
    """Tell whether an engine comes with this harness, from the same authors; of running servers, by label."""
    engine = ENGINES.get(label.lower() if name == RUNNING_SERVER else name)
    return "rosebench" in getattr(engine, "distributions", ())


def in_order(records: Iterable[Record]) -> list[Record]:
    """Records of engines by name, those of engines of this harness last: none is first by default."""
    return sorted(records, key=lambda each: (is_ours(each.engine, each.label), each.label.casefold()))


def get_engine(name: EngineName, address: Address | None = None) -> Engine:
    """The engine of that name; `address` is that of a running server.

    Raises:
        UsageError: there is none, it cannot be loaded, or the address or key cannot be used.
    """
    check_name(name)
    if name in BROKEN:
        raise BROKEN[name]
    if name == OpenAI.name:
        return OpenAI(address)
    return LOCAL.get(name) or ENGINES[name]


def look_for(engine: Engine) -> Installation | Missing:
    """Return where an engine is, or why it cannot be used: also where a file names no working interpreter."""
    try:
        return engine.find()
    except UsageError as error:
        return Missing(engine.name, error.message, error.hint)


def installed_engines() -> list[EngineRef]:
    """Return every engine that is installed; DEFAULT_ENGINES where there is nothing to compare."""
    names = [name for name, engine in LOCAL.items() if not isinstance(look_for(engine), Missing)]
    return [EngineRef(name=name) for name in (names if len(names) > 1 else DEFAULT_ENGINES)]


def get_engine_variant(ref: EngineRef) -> EngineVariant:
    """The engine and variant that `NAME@VARIANT` means, with the label under which it is drawn.

    Raises:
        UsageError: unknown engine or variant.
    """
    engine = get_engine(ref.name)
    if not ref.is_inline:
        variant = find_variant(engine, ref.variant)
        return EngineVariant(ref, variant, engine.label(variant))
    base = find_variant(engine, ref.base)
    changes = {"label": ref.variant, "args": [*base.args, *ref.args], "env": base.env | ref.env}
    variant = base.model_copy(update=changes)
    return EngineVariant(ref, variant, engine.label(variant))
