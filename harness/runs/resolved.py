"""Settings without any `auto` left, everything they mean on this machine, and `run.json` of a run with them.

Found out in stages, each by what the ones before it gave: the engines, the model, what is sent, the client.
"""

from __future__ import annotations

import platform
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import JsonValue

import harness
from harness.cluster.testbed import Machines
from harness.cluster.this_machine import ThisMachine
from harness.engines.base import TYPED, Engine, EngineSettings, EngineVariant, Installation, RequestSettings
from harness.engines.placement import CpuSplit, Placement, parallel_of, resolve_capacity
from harness.engines.registry import LOCAL
from harness.engines.selection import Selection
from harness.errors import UsageError
from harness.files import now
from harness.models.model_folder import NO_TOKENIZER, ModelChoice, ModelFolder, choose_model
from harness.runs.events import Calibrating, Notify
from harness.schema.machines import Calibration
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import Skipped
from harness.schema.run_info import RunInfo, TraceRecord, Versions
from harness.schema.setting_types import RUNNING_SERVER
from harness.telemetry.revision import git_revision, source_hash
from harness.workload.planned_requests import DrawnFields
from harness.workload.sources import RequestSource
from harness.workload.workload import Workload

Number = TypeVar("Number", int, float)

#: A client process is given this share of what it sustains before another is started: half of what would
#: make a cell invalid.
CLIENT_SHARE = 0.25
#: The same where the client was never calibrated, in requests in flight.
REQUESTS_PER_CLIENT = 64


@dataclass(frozen=True)
class Resolved:
    """An online run, ready to start.

    Attributes:
        tokenizer: Folder of the tokenizer of running servers; None where it is unknown.
        installations: One for each engine variant that is there.
        most_clients: Client processes that may be taken where the settings' are too few; None where their
            number was given.
    """

    settings: OnlineSettings
    model: ModelFolder | None
    tokenizer: Path | None
    workload: Workload
    engine_variants: list[EngineVariant]
    engines: dict[str, Engine]
    installations: list[Installation]
    missing: list[Skipped]
    cpus: CpuSplit
    machines: Machines
    calibration: Calibration | None = None
    drawn_fields: DrawnFields | None = None
    most_clients: int | None = None

    @property
    def clients(self) -> int:
        assert self.settings.clients != "auto"
        return self.settings.clients

    def request_settings(self, engine_variant: EngineVariant, served_name: str) -> RequestSettings:
        """Return how `engine_variant` is to be asked; a running server may take less of it."""
        settings, running = self.settings, engine_variant.server is not None
        tokenizer = self.tokenizer if running or self.model is None else self.model.path
        text_only = self.engines[engine_variant.label].text_only
        text = settings.text_prompts or text_only or (running and settings.tokenizer == NO_TOKENIZER)
        return RequestSettings(
            tokenizer,
            served_name,
            settings.ignore_eos and settings.endpoint not in TYPED,
            settings.seed,
            text,
            engine_variant.variant.body,
            endpoint=settings.endpoint,
            user_fields=settings.request_body,
        )

    def engine_settings(self, engine_variant: EngineVariant) -> EngineSettings:
        """Return the settings that `engine_variant` is started with."""
        settings, model = self.settings, self.model
        assert settings.device != "auto" and settings.dtype != "auto" and settings.max_model_len is not None
        return EngineSettings(
            engine_variant=engine_variant,
            model=model.path if model else Path(),
            served_name=model.served_name if model else settings.model,
            device=settings.device,
            dtype=settings.dtype,
            max_model_len=settings.max_model_len,
            prefix_cache=settings.prefix_cache,
            max_concurrency=max((load.in_flight or 0 for load in settings.loads), default=0) or None,
            cpus=self.cpus.engine,
            cpu_threads=None if settings.cpu_threads == "auto" else settings.cpu_threads,
            seed=settings.seed,
            parallel=parallel_of(settings),
            max_running_requests=_set(settings.max_running_requests),
            gpu_memory_utilization=_set(settings.gpu_memory_utilization),
        )

    def info(self, command: list[str]) -> RunInfo:
        """Return `run.json` of a run that begins now."""
        machine, trace = self.machines.environment(), self.workload.source.record
        info = make_info(self.settings, command, self.installations, machine, trace, self.calibration)
        info.hosts, info.most_clients = list(self.machines.hosts), self.most_clients
        info.experts = self.model.experts if self.model else 0
        return info


def make_info(
    settings: OnlineSettings,
    command: list[str],
    installations: Iterable[Installation],
    machine: dict[str, JsonValue],
    trace: TraceRecord | None = None,
    calibration: Calibration | None = None,
) -> RunInfo:
    """Return `run.json` of a run on this machine that begins now."""
    calibrated: dict[str, JsonValue] = {}
    if settings.num_prompts is None:
        calibrated["calibration"] = (
            "none: cells are not judged by what the client sustains; `bench calibrate` measures it"
            if calibration is None
            else calibration.model_dump(mode="json")
        )
    return RunInfo(
        kind="online" if settings.num_prompts is None else "offline",
        created=now(),
        command=command,
        settings=settings,
        preset=settings.preset_record,
        environment=machine | calibrated,
        versions=versions(installations),
        trace=trace,
    )


def versions(installations: Iterable[Installation]) -> Versions:
    """Versions of the engines of a run; torch's is that of the first engine that has it."""
    engines = list(installations)
    shared = {
        name: next((e.versions[name] for e in engines if name in e.versions), None)
        for name in ("torch", "transformers")
    }
    names = {name: engine.version_name or name for name, engine in LOCAL.items()}
    return Versions(
        git_rev=git_revision(),
        source=source_hash(),
        rosebench=harness.__version__,
        python=platform.python_version(),
        **dict.fromkeys(names.values()) | shared | {names[e.engine]: e.version for e in engines},
    )


def resolve_online(
    settings: OnlineSettings, notify: Notify, machines: Machines | None = None, in_flight: float = 0
) -> Resolved:
    """Look everything up before anything starts; calibrates the client where that was never done.

    Args:
        machines: Where engines and clients run; None: this machine.
        in_flight: The most requests that a search can have in flight.

    Raises:
        UsageError: A setting cannot work here, or no engine that was asked for is there.
    """
    machines = machines or ThisMachine()
    selection = machines.select(settings)
    placement, names = selection.placement, [variant.ref.name for variant in selection.variants]
    model = choose_model(settings, placement.device, names, selection.context)
    settings = _decided(settings, placement, model, max([in_flight, *(settings.concurrency or ())]))
    if settings.prompt_nonce is None and RUNNING_SERVER in names:
        settings = settings.model_copy(update={"prompt_nonce": draw_nonce()})
    if settings.num_prompts is not None:
        settings = _of_batch(settings, selection)
    machines.use_model(settings.model, settings.tokenizer or settings.model)
    workload = Workload.make(settings, model.vocab_size, model.max_model_len, model.text_tokenizer())
    fields = DrawnFields.make(settings.lora, settings.response_format, settings.response_format_share)
    calibration = None
    if settings.num_prompts is None:
        calibration = machines.calibration(settings, lambda what: notify(Calibrating(what)))
    limits = machines.clients(selection) if settings.num_prompts is None else (1, 1)
    clients = _clients(settings, workload.source, limits, calibration)
    return Resolved(
        settings=settings.model_copy(update={"clients": clients}),
        model=model.folder,
        tokenizer=model.tokenizer,
        workload=workload,
        engine_variants=selection.variants,
        engines=selection.engines,
        installations=selection.installations,
        missing=selection.missing,
        cpus=placement.cpus,
        machines=machines,
        calibration=calibration,
        drawn_fields=fields,
        most_clients=limits[1] if settings.clients == "auto" else None,
    )


def _of_batch(settings: OnlineSettings, selection: Selection) -> OnlineSettings:
    """Return the settings of a batch without an `auto`. Raises UsageError where a cache has its prompts."""
    for engine_variant in selection.variants:
        repeated = settings.settle or settings.min_duration
        if engine_variant.caches_prefixes(settings.prefix_cache) and repeated:
            raise UsageError(
                f"{engine_variant.label} would answer the same batch again from its prefix cache",
                "leave out --settle and --min-duration, or the prefix cache",
            )
    warmup = settings.num_prompts if settings.warmup == "auto" else settings.warmup
    return settings.model_copy(update={"warmup": warmup})


def draw_nonce() -> int:
    """Part of the seeds of a running server's prompts."""
    return secrets.randbits(32)


def _decided(
    settings: OnlineSettings, placement: Placement, model: ModelChoice, in_flight: float
) -> OnlineSettings:
    return settings.model_copy(
        update={
            "device": placement.device,
            "dtype": placement.dtype,
            "cpu_threads": placement.cpu_threads,
            "model": model.folder.name if model.folder else settings.model,
            "vocab_size": model.vocab_size,
            "max_model_len": model.max_model_len,
            **resolve_capacity(settings, placement.device, in_flight),
        }
    )


def _set(value: Number | Literal["default"] | None) -> Number | None:
    """None where it is the engine's own."""
    return None if value == "default" else value


def _clients(
    settings: OnlineSettings,
    source: RequestSource[Any],
    limits: tuple[int, int],
    calibration: Calibration | None,
) -> int:
    """Return the number of processes that the load needs, within what the machines should run."""
    least, most = limits
    if settings.clients != "auto":
        return settings.clients
    if least == most:
        return least
    if calibration is None:
        return min(most, max(least, ceil(source.in_flight() / REQUESTS_PER_CLIENT)))
    tokens, requests = source.tokens_per_s(), source.requests_per_s()
    for processes in range(max(1, least), most):
        ceiling = calibration.ceiling(processes)
        share = max(tokens / ceiling.chunks_per_s, requests / ceiling.requests_per_s) / processes
        if share <= CLIENT_SHARE:
            return processes
    return most
