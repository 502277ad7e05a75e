"""The engines of a run: which were asked for, which are there, and what they run on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from harness.engines.adapters.openai import OpenAI
from harness.engines.base import Engine, EngineVariant, Installation, Missing
from harness.engines.local import GIVE_ONE, LocalEngine
from harness.engines.placement import Placement, check_gpus, parallel_of, resolve_device, resolve_placement
from harness.engines.registry import LOCAL, get_engine, get_engine_variant
from harness.engines.running.address import Address
from harness.errors import EngineError, UsageError
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import Skipped
from harness.schema.setting_types import RUNNING_SERVER


@dataclass(frozen=True)
class Selection:
    """The engines of an online run. `variants` are those that are there; `engines` and `missing` are by
    label, `installations` by engine. `context` is the shortest that a running server reports, in tokens."""

    variants: list[EngineVariant]
    engines: dict[str, Engine]
    installations: list[Installation]
    missing: list[Skipped]
    context: int | None
    placement: Placement

    @property
    def equipment(self) -> str:
        """Devices and engines in words: `cpu, fp32, 2 threads, vllm 0.32.0 (torch 2.9) at …`."""
        placement = self.placement
        words: list[str] = [placement.device, placement.dtype]
        words += [] if placement.cpu_threads == "auto" else [f"{placement.cpu_threads} threads"]
        for installations in self.installations:
            versions = [f"{name} {version}" for name, version in sorted(installations.versions.items())]
            inside = f" ({', '.join(versions)})" if versions else ""
            words.append(f"{installations.engine} {installations.version}{inside} at {installations.python}")
        return ", ".join(words)


def select_engines(settings: OnlineSettings, alone: bool = False) -> Selection:
    """Find the engines that `settings` ask for, and ask the running ones.

    Args:
        alone: Clients run on other machines, and an engine has all cores of this one.

    Raises:
        UsageError: An engine, variant or option is unknown, none is there, or a setting does not fit this
            machine or a running server.
        EngineError: A running server does not answer.
    """
    engine_variants = make_engine_variants(settings)
    engines = {v.label: get_engine(v.ref.name, address_of(settings, v.server)) for v in engine_variants}
    outside = [] if settings.num_prompts is None else skipped_of_batch(engine_variants, settings)
    labels = {skipped.label for skipped in outside}
    installations, missing = find_engines([v for v in engine_variants if v.label not in labels])
    missing += outside
    device, parallel = resolve_device(settings.device), parallel_of(settings)
    labels = {skipped.label for skipped in missing}
    for variant in engine_variants:
        engine = engines[variant.label]
        if variant.label in labels or not isinstance(engine, LocalEngine):
            continue
        if reason := engine.unsupported_parallelism(variant.parallelism(parallel), device):
            missing.append(variant.skipped(reason, GIVE_ONE))
    if len(missing) == len(engine_variants):
        raise UsageError(
            "none of the engines can be measured: " + "; ".join(f"{s.label}: {s.reason}" for s in missing),
            "; ".join(dict.fromkeys(s.hint for s in missing)),
        )
    labels = {skipped.label for skipped in missing}
    present = [v for v in engine_variants if v.label not in labels]
    context = reported_context(settings, {v.label: engines[v.label] for v in present})
    placement = resolve_placement(settings, alone)
    for variant in present:
        engine = engines[variant.label]
        if isinstance(engine, LocalEngine):
            if not variant.in_process:
                with suppress(EngineError):  # other faults show at the start
                    engine.check_options(engine.installed(), variant, settings.prefix_cache)
            check_gpus(variant.label, variant.parallelism(parallel), placement.device)
    return Selection(present, engines, installations, missing, context, placement)


def make_engine_variants(settings: OnlineSettings) -> list[EngineVariant]:
    """Make the engines and variants of a run, each with a label of its own: with `aa` each as two, and of a
    batch those that are measured both ways too.

    Raises:
        UsageError: Unknown engine or variant, or two that would be drawn alike.
    """
    by_label: dict[str, EngineVariant] = {}
    for engine_variant in _named(settings):
        if other := by_label.get(engine_variant.label):
            raise UsageError(
                f"{other.ref} and {engine_variant.ref} are both drawn as {engine_variant.label!r}",
                f"give one another label in {get_engine(engine_variant.ref.name).config_file}",
            )
        by_label[engine_variant.label] = engine_variant
    if settings.num_prompts is not None:
        return batch_variants(by_label.values())
    if settings.aa:
        return [
            replace(engine_variant, label=f"{label} ({side})", side_of=label)
            for label, engine_variant in by_label.items()
            for side in "AB"
        ]
    return list(by_label.values())


def _named(settings: OnlineSettings) -> Iterator[EngineVariant]:
    """Yield the engines as they are named; each running server is one. Raises UsageError."""
    for ref in settings.engines:
        engine_variant = get_engine_variant(ref)
        if ref.name == RUNNING_SERVER and settings.servers:
            yield from (replace(engine_variant, label=label, server=label) for label in settings.servers)
        else:
            yield engine_variant


def find_engines(engine_variants: Iterable[EngineVariant]) -> tuple[list[Installation], list[Skipped]]:
    """Find the engines that are started here. Returns the installed and the missing ones."""
    installations: dict[str, Installation] = {}
    missing = []
    for engine_variant in engine_variants:
        if engine_variant.ref.name == RUNNING_SERVER:
            continue
        place = get_engine(engine_variant.ref.name).find()
        if isinstance(place, Missing):
            missing.append(engine_variant.skipped(f"not installed: {place.reason}", place.hint))
        else:
            installations[place.engine] = place
    return list(installations.values()), missing


def address_of(settings: OnlineSettings, label: str | None) -> Address | None:
    """Return the address of the running server with that label; None for an engine that is started here.

    Raises:
        UsageError: The address is that of another endpoint than requests go to.
    """
    if label is None:
        return None
    pid = settings.of_server(settings.server_pid, label)
    url, *others = (part.strip() for part in settings.servers[label].split(","))
    address = Address(
        url,
        settings.of_server(settings.api_key_env, label),
        settings.of_server(settings.served_model, label),
        settings.header,
        settings.ca_cert,
        settings.wait_ready,
        min(settings.timeout_s, settings.deadline_s),
        settings.endpoint,
        tuple(others),
        None if pid is None else int(pid),
    )
    named = address.named_endpoint
    if named not in (None, "completions", settings.endpoint):
        raise UsageError(f"the address of {label} is that of {named}", f"add --endpoint {named}")
    return address


def reported_context(settings: OnlineSettings, engines: Mapping[str, Engine]) -> int | None:
    """The shortest context in tokens that a running server reports; None where none does.

    Raises:
        EngineError: A server does not answer, and either nothing else says how long its context is, or
            --wait-ready has passed already.
        UsageError: A server lists several models and none is chosen, it lacks the one that is, or its context
            is shorter than --max-model-len.
    """
    contexts = []
    unknown = settings.max_model_len is None and settings.model == "auto"
    for label, engine in engines.items():
        if not isinstance(engine, OpenAI):
            continue
        try:
            model = engine.model
        except EngineError:
            if unknown or settings.wait_ready:  # it had its time to get ready
                raise
            continue
        context = model.max_model_len
        if context is None:
            continue
        if (settings.max_model_len or 0) > context:
            raise UsageError(
                f"--max-model-len {settings.max_model_len} is above the {context} of {label}",
                "give a smaller one",
            )
        contexts.append(context)
    return min(contexts, default=None)


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


def skipped_of_batch(engine_variants: Iterable[EngineVariant], settings: OnlineSettings) -> list[Skipped]:
    """Return the variants that cannot run the batch of `settings`, each with the reason."""
    mixed = not (isinstance(settings.input_len, int) and isinstance(settings.output_len, int))
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
            hint = f"give it `offline` in {engine.config_file}"
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
