"""`bench offline`: a fixed batch through every engine, a fresh process for every measurement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.engines import cores
from harness.engines.auto_settings import resolve_device, resolve_dtype
from harness.engines.base import EngineSettings
from harness.engines.registry import contender
from harness.errors import BenchError, CleanupError, UsageError
from harness.files import now, write_json
from harness.models import ModelFolder
from harness.runs.batch.entries import Entry, make_entries, order
from harness.runs.batch.measured import result
from harness.runs.batch.through_server import through_server
from harness.runs.batch.through_worker import Batch, through_worker
from harness.runs.folder import OFFLINE_RESULTS, RUN, log_file, make_folder
from harness.runs.info import versions
from harness.runs.resolved import resolve_model
from harness.schema.results import OfflineResult, OfflineResults, OfflineRunInfo, Skipped
from harness.schema.settings import OfflineSettings
from harness.telemetry.machine import environment
from harness.workload import closed_loop, warmup


@dataclass(frozen=True)
class Begun:
    """The run has its folder."""

    folder: Path


@dataclass(frozen=True)
class Measuring:
    """A measurement begins: number `index` of `total`."""

    label: str
    repeat: int
    index: int
    total: int
    log: Path


Event = Begun | Measuring | OfflineResult | Skipped
Notify = Callable[[Event], None]


def run_offline(settings: OfflineSettings, command: list[str], notify: Notify) -> tuple[Path, OfflineResults]:
    """Measure every engine. Returns the run's folder and its results.

    The results file is written after every measurement, so an interrupted run keeps what it had; what it did
    not come to is in `skipped` of that file. An engine that fails is there with the repeat; one that is not
    installed, without.

    Args:
        command: The command line, to be repeated.
        notify: Called with each event.

    Raises:
        UsageError: an engine, variant, model or length that cannot be, or no engine is there.
        CleanupError: an engine could not be ended. Nothing can be measured beside it.
    """
    entries, skipped = make_entries([contender(ref) for ref in settings.engines])
    names: list[str] = [entry.engine.name for entry in entries]
    model = resolve_model(settings, resolve_device(settings.device), names)
    if model is None or not entries:
        reasons = "; ".join(f"{skip.label}: {skip.reason}" for skip in skipped)
        raise UsageError(
            f"no engine can be measured: {reasons}", "; ".join(dict.fromkeys(skip.hint for skip in skipped))
        )
    settings = _resolved(settings, model)
    split = cores.split(cores.physical_cores())
    launches = {entry: _engine_settings(entry, settings, model, split.engine) for entry in entries}
    for entry, launch in launches.items():
        if entry.served:
            entry.engine.server(entry.engine.installed(), launch, port=0)
    info = OfflineRunInfo(
        created=now(),
        command=command,
        settings=settings,
        environment=environment(),
        versions=versions(entry.engine.installed() for entry in entries),
    )
    results = OfflineResults(meta=info, results=[], skipped=skipped)
    out = make_folder(settings.out, "offline")
    notify(Begun(out))
    turns = list(order(entries, settings))
    _save(results, out, turns)
    for skip in skipped:
        notify(skip)
    for index, (entry, repeat) in enumerate(turns):
        log = log_file(out, entry.contender.ref, "server" if entry.served else "offline")
        notify(Measuring(entry.label, repeat, index, len(turns), log))
        try:
            batch, launch = _batch(settings, repeat), launches[entry]
            if entry.served:
                measured, record = through_server(entry.engine, launch, batch, log, split.client)
            else:
                measured, record = through_worker(entry.engine, launch, entry.label, batch, log)
            row = result(measured, entry.contender, entry.label, repeat, settings)
        except CleanupError:
            raise
        except BenchError as error:
            failure = _left_out(entry, repeat, error.message, error.hint)
            results.skipped.append(failure)
            notify(failure)
        else:
            results.results.append(row)
            if all(record.label != known.label for known in info.launches):
                info.launches.append(record)
            notify(row)
        _save(results, out, turns[index + 1 :])
    return out, results


def _resolved(settings: OfflineSettings, model: ModelFolder) -> OfflineSettings:
    """The settings with nothing left to `auto`. Raises UsageError when the batch does not fit the context."""
    device = resolve_device(settings.device)
    context = settings.max_model_len or model.max_model_len
    if context > model.max_model_len:
        raise UsageError(
            f"--max-model-len {context} is above the model's {model.max_model_len}", "give a smaller one"
        )
    if settings.input_len + settings.output_len > context:
        raise UsageError(
            f"{settings.input_len} + {settings.output_len} tokens do not fit a context of {context}",
            "lower --input-len or --output-len",
        )
    return settings.model_copy(
        update={
            "model": model.name,
            "device": device,
            "dtype": resolve_dtype(settings.dtype, device),
            "max_model_len": context,
            "vocab_size": model.vocab_size,
            "warmup": settings.num_prompts if settings.warmup == "auto" else settings.warmup,
        }
    )


def _engine_settings(
    entry: Entry, settings: OfflineSettings, model: ModelFolder, cpus: tuple[int, ...] | None
) -> EngineSettings:
    assert settings.max_model_len is not None
    device = resolve_device(settings.device)
    return EngineSettings(
        contender=entry.contender,
        model=model.path,
        served_name=model.served_name,
        device=device,
        dtype=resolve_dtype(settings.dtype, device),
        max_model_len=settings.max_model_len,
        prefix_cache=settings.prefix_cache,
        max_concurrency=settings.num_prompts,
        cpus=cpus,
        seed=settings.seed,
    )


def _batch(settings: OfflineSettings, repeat: int) -> Batch:
    """The prompts of a repeat: every engine gets the same, no two repeats share one."""
    assert settings.warmup != "auto"
    lengths = settings.input_len, settings.output_len
    seed = settings.seed + repeat
    return Batch(
        closed_loop(settings.num_prompts, *lengths, settings.vocab_size, seed),
        warmup([lengths] * settings.warmup, settings.vocab_size, seed),
        settings.output_len,
        settings.ignore_eos,
    )


def _left_out(entry: Entry, repeat: int, reason: str, hint: str) -> Skipped:
    ref = entry.contender.ref
    return Skipped(
        engine=ref.name, variant=ref.variant, label=entry.label, repeat=repeat, reason=reason, hint=hint
    )


def _save(results: OfflineResults, out: Path, ahead: Sequence[tuple[Entry, int]]) -> None:
    """`ahead` is not measured yet; should the run end here, its files say so."""
    pending = [
        _left_out(entry, repeat, "the run ended before its measurement", "run the command again")
        for entry, repeat in ahead
    ]
    write_json(out / RUN, results.meta)
    stored = results.model_copy(update={"skipped": [*results.skipped, *pending]})
    write_json(out / OFFLINE_RESULTS, stored)
