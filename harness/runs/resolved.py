"""Settings without any `auto` left, and everything they mean on this machine."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import TypeVar

from harness.calibration.calibrate import calibrate
from harness.calibration.calibration_file import load as load_calibration
from harness.engines.adapters.openai import OpenAI
from harness.engines.auto_settings import resolve_cpu_threads, resolve_device, resolve_dtype
from harness.engines.base import (
    Engine,
    EngineSettings,
    EngineVariant,
    Installation,
    Missing,
    RequestSettings,
)
from harness.engines.cores import CpuSplit, physical_cores, split
from harness.engines.local import LocalEngine
from harness.engines.registry import get_engine
from harness.errors import BenchError, EngineError, UsageError
from harness.models.chat_template import ChatTemplate
from harness.models.model_folder import ModelFolder, resolve
from harness.runs.events import Calibrating, Notify
from harness.runs.mix import mix_of
from harness.runs.running_servers import (
    NO_TOKENIZER,
    address_of,
    named_variants,
    reported_context,
    tokenizer_of,
    vocabulary,
)
from harness.runs.workload import Workload
from harness.schema.calibration import Calibration
from harness.schema.common_settings import CommonSettings
from harness.schema.engine_ref import RUNNING_SERVER
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import Skipped
from harness.workload.mixes import Mix

Settings = TypeVar("Settings", bound=CommonSettings)

#: A client process is given this share of what it sustains before another is started: half of what would
#: make a cell invalid.
CLIENT_SHARE = 0.25
#: The same where the client was never calibrated, in requests in flight.
REQUESTS_PER_CLIENT = 64


@dataclass(frozen=True)
class Resolved:
    """An online run, ready to start. `found` has one entry for each engine variant that is there;
    `tokenizer` is the folder of that of running servers, None where it is unknown."""

    settings: OnlineSettings
    model: ModelFolder | None
    tokenizer: Path | None
    workload: Workload
    engine_variants: list[EngineVariant]
    engines: dict[str, Engine]
    found: list[Installation]
    missing: list[Skipped]
    cpus: CpuSplit
    calibration: Calibration | None = None
    mix: Mix | None = None

    @property
    def clients(self) -> int:
        assert self.settings.clients != "auto"
        return self.settings.clients

    def request_settings(self, engine_variant: EngineVariant, served_name: str) -> RequestSettings:
        """How `engine_variant` is asked; a running server may take less of it."""
        asked, running = self.settings, engine_variant.server is not None
        tokenizer = self.tokenizer if running or self.model is None else self.model.path
        text = asked.text_prompts or (running and asked.tokenizer == NO_TOKENIZER)
        return RequestSettings(
            tokenizer,
            served_name,
            asked.ignore_eos,
            asked.seed,
            text,
            engine_variant.variant.body,
            endpoint=asked.endpoint,
        )

    def engine_settings(self, engine_variant: EngineVariant) -> EngineSettings:
        """What `engine_variant` is started with."""
        in_flight = max(self.settings.concurrency) if self.settings.concurrency else None
        return engine_settings(self.settings, engine_variant, self.model, in_flight, self.cpus)


def resolve_online(settings: OnlineSettings, notify: Notify) -> Resolved:
    """Look everything up before anything starts; calibrates the client where that was never done.

    Raises:
        UsageError: A setting cannot work here, or no engine that was asked for is there.
    """
    engine_variants = make_engine_variants(settings)
    engines = {v.label: get_engine(v.ref.name, address_of(settings, v.server)) for v in engine_variants}
    found, missing = find_engines(engine_variants, engines)
    if len(missing) == len(engine_variants):
        raise UsageError(
            "none of the engines is installed: " + "; ".join(f"{s.label}: {s.reason}" for s in missing),
            "; ".join(dict.fromkeys(s.hint for s in missing)),
        )
    absent = {s.label for s in missing}
    engine_variants = [v for v in engine_variants if v.label not in absent]
    context = reported_context(settings, engines)
    settings, model = resolve_common(settings, [v.ref.name for v in engine_variants], context)
    tokenizer = tokenizer_of(settings, model)
    if model is None and tokenizer is not None:
        settings = settings.model_copy(update={"vocab_size": vocabulary(tokenizer) or settings.vocab_size})
    _check_chat(settings, model, engine_variants)
    if settings.prompt_nonce is None and any(v.ref.name == RUNNING_SERVER for v in engine_variants):
        settings = settings.model_copy(update={"prompt_nonce": secrets.randbits(32)})
    assert settings.max_model_len is not None
    workload = Workload.make(
        settings, settings.vocab_size, settings.max_model_len, model.path if model else tokenizer
    )
    cpus = split(physical_cores())
    resolved = Resolved(settings, model, tokenizer, workload, engine_variants, engines, found, missing, cpus)
    resolved = replace(resolved, mix=mix_of(settings))
    for engine_variant in engine_variants:
        _check_command(engines[engine_variant.label], resolved.engine_settings(engine_variant))
    calibration = _calibration(settings, notify)
    clients = _clients(settings, workload, cpus, calibration)
    settings = settings.model_copy(update={"clients": clients})
    return replace(resolved, settings=settings, calibration=calibration)


def resolve_common(
    settings: Settings, names: Sequence[str], reported_context: int | None = None
) -> tuple[Settings, ModelFolder | None]:
    """What every benchmark shares, with nothing left to `auto`, and the model's folder.

    Args:
        names: The engines that are there. The folder is None where all are servers that run already.
        reported_context: The context in tokens that running servers report.

    Raises:
        UsageError: The model is not there, or its context is unknown or shorter than what is asked for.
    """
    device = resolve_device(settings.device)
    model = resolve_model(settings, device, names)
    vocab_size, max_model_len = model_context(settings, model, reported_context)
    resolved = {
        "device": device,
        "dtype": resolve_dtype(settings.dtype, device),
        "cpu_threads": resolve_cpu_threads(settings.cpu_threads, device, split(physical_cores()).engine),
        "model": model.name if model else settings.model,
        "vocab_size": vocab_size,
        "max_model_len": max_model_len,
    }
    return settings.model_copy(update=resolved), model


def engine_settings(
    settings: CommonSettings,
    engine_variant: EngineVariant,
    model: ModelFolder | None,
    max_concurrency: int | None,
    cpus: CpuSplit,
) -> EngineSettings:
    """What `engine_variant` is started with, by resolved settings."""
    assert settings.device != "auto" and settings.dtype != "auto" and settings.max_model_len is not None
    return EngineSettings(
        engine_variant=engine_variant,
        model=model.path if model else Path(),
        served_name=model.served_name if model else settings.model,
        device=settings.device,
        dtype=settings.dtype,
        max_model_len=settings.max_model_len,
        prefix_cache=settings.prefix_cache,
        max_concurrency=max_concurrency,
        cpus=cpus.engine,
        cpu_threads=None if settings.cpu_threads == "auto" else settings.cpu_threads,
        seed=settings.seed,
    )


def model_context(
    settings: CommonSettings, model: ModelFolder | None, reported_context: int | None = None
) -> tuple[int, int]:
    """Vocabulary and context of the model, or of the server of which only the settings speak."""
    asked = settings.max_model_len
    if model is None:
        context = asked or reported_context
        if context is None:
            raise UsageError("the running server does not report its context", "give --max-model-len")
        return settings.vocab_size, context
    if asked is not None and asked > model.max_model_len:
        raise UsageError(
            f"--max-model-len {asked} is above the model's {model.max_model_len}", "give a smaller one"
        )
    return model.vocab_size, asked or min(model.max_model_len, reported_context or model.max_model_len)


def make_engine_variants(settings: CommonSettings) -> list[EngineVariant]:
    """The engines and variants that were asked for, each with a label of its own; with `aa`, each as two.

    Raises:
        UsageError: Unknown engine or variant, or two that would be drawn alike.
    """
    by_label: dict[str, EngineVariant] = {}
    for engine_variant in named_variants(settings):
        if other := by_label.get(engine_variant.label):
            raise UsageError(
                f"{other.ref} and {engine_variant.ref} are both drawn as {engine_variant.label!r}",
                f"give one another label in configs/engines/{engine_variant.ref.name}.yaml",
            )
        by_label[engine_variant.label] = engine_variant
    if isinstance(settings, OnlineSettings) and settings.aa:
        return [
            replace(engine_variant, label=f"{label} ({side})")
            for label, engine_variant in by_label.items()
            for side in "AB"
        ]
    return list(by_label.values())


def _check_chat(
    settings: OnlineSettings, model: ModelFolder | None, engine_variants: Sequence[EngineVariant]
) -> None:
    """Raises UsageError where engines are to be asked for chats and the model has no template."""
    local = any(engine_variant.server is None for engine_variant in engine_variants)
    if settings.endpoint == "chat" and local and model is not None:
        try:
            ChatTemplate(model.path)
        except EngineError as error:
            raise UsageError(error.message, error.hint) from None


def _check_command(engine: Engine, settings: EngineSettings) -> None:
    """Raises UsageError when the installed version has no such option, or a running server serves several
    models and none is chosen; other faults show at the start."""
    with suppress(EngineError):
        if isinstance(engine, LocalEngine):
            engine.server(engine.installed(), settings, port=0)
        elif isinstance(engine, OpenAI):
            _ = engine.model


def find_engines(
    engine_variants: list[EngineVariant], engines: dict[str, Engine]
) -> tuple[list[Installation], list[Skipped]]:
    """Where the engines of `engine_variants` are, and which are not there."""
    found: dict[str, Installation] = {}
    missing = []
    for engine_variant in engine_variants:
        if engine_variant.ref.name == RUNNING_SERVER:
            continue
        place = engines[engine_variant.label].find()
        if isinstance(place, Missing):
            missing.append(engine_variant.skipped(f"not installed: {place.reason}", place.hint))
        else:
            found[place.engine] = place
    return list(found.values()), missing


def resolve_model(settings: CommonSettings, device: str, names: Sequence[str]) -> ModelFolder | None:
    """The model's folder; None where only a running server knows its model.

    `auto` is GPT-2's own shape on a GPU and a small one on a CPU, both with random weights.
    """
    if settings.model == "auto":
        if all(name == RUNNING_SERVER for name in names):
            return None
        return resolve("random:gpt2" if device == "cuda" else "random:gpt2-tiny")
    try:
        return resolve(settings.model)
    except UsageError as error:
        if RUNNING_SERVER in names:
            error.hint += "; a model of the running server is named with --served-model"
        raise


def _calibration(settings: OnlineSettings, notify: Notify) -> Calibration | None:
    """The client's on this machine; None where it cannot be measured, or is not to be."""
    stored = load_calibration()
    if stored is not None or not settings.calibrate:
        return stored
    with suppress(BenchError):
        return calibrate(quick=True, report_status=lambda what: notify(Calibrating(what)))
    return None


def _clients(
    settings: OnlineSettings, workload: Workload, cpus: CpuSplit, calibration: Calibration | None
) -> int:
    """One process or, where the client has cores of its own, as many of these as the load needs."""
    if settings.clients != "auto":
        return settings.clients
    if cpus.client is None:
        return 1
    if calibration is None:
        needed = workload.concurrency() / REQUESTS_PER_CLIENT
    else:
        needed = workload.tokens_per_s() / (CLIENT_SHARE * calibration.ceiling(1).chunks_per_s)
    return min(len(cpus.client), max(1, ceil(needed)))
