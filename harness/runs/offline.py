"""`bench offline`: a fixed batch through every engine, a fresh process for every measurement."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

from harness.engines.parallel import check_gpus
from harness.engines.registry import get_engine_variant
from harness.errors import BenchError, CleanupError, UsageError
from harness.files import write_json
from harness.metrics.batches import compare_batches
from harness.runs.batch.entries import Entry, make_entries
from harness.runs.batch.measured import result
from harness.runs.batch.through_server import through_server
from harness.runs.batch.through_worker import Batch, through_worker
from harness.runs.events import BatchDone, BatchStarting, EngineSkipped, Notify, Started
from harness.runs.folder import OFFLINE_RESULTS, RUN, log_file, make_folder
from harness.runs.info import offline_info
from harness.runs.resolved import engine_settings, resolve_common
from harness.runs.schedule import turns
from harness.runs.workload import check_lengths
from harness.schema.offline_settings import OfflineSettings
from harness.schema.results import OfflineResults
from harness.workload import warmup
from harness.workload.content import SyntheticContent


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
        CleanupError: an engine could not be ended. Nothing can be measured while it runs.
    """
    mixed = not all(isinstance(lengths, int) for lengths in (settings.input_len, settings.output_len))
    entries, skipped = make_entries([get_engine_variant(ref) for ref in settings.engines], mixed=mixed)
    if not entries:
        reasons = "; ".join(f"{skip.label}: {skip.reason}" for skip in skipped)
        raise UsageError(
            f"no engine can be measured: {reasons}", "; ".join(dict.fromkeys(skip.hint for skip in skipped))
        )
    settings, model, split = resolve_common(settings, [entry.engine.name for entry in entries])
    assert settings.max_model_len is not None
    check_lengths(settings.input_len, settings.output_len, settings.max_model_len)
    if settings.warmup == "auto":
        settings = settings.model_copy(update={"warmup": settings.num_prompts})
    launches = {
        entry: engine_settings(settings, entry.engine_variant, model, settings.num_prompts, split)
        for entry in entries
    }
    for entry, launch in launches.items():
        check_gpus(entry.label, launch.spread, launch.device)
        if launch.caches_prefixes and (settings.settle or settings.min_duration):
            raise UsageError(
                f"{entry.label} would answer the same batch again from its prefix cache",
                "leave out --settle and --min-duration, or the prefix cache",
            )
        if entry.served:
            entry.engine.server(entry.engine.installed(), launch, port=0)
    planned = turns(entries, settings)
    info = offline_info(settings, command, [entry.engine.installed() for entry in entries])
    info.order = [(entry.label, repeat) for entry, repeat in planned]
    results = OfflineResults(meta=info, results=[], skipped=skipped)
    out = make_folder(settings.out, "offline")
    notify(Started(out, len(planned)))
    _save(results, out, planned)
    for skip in skipped:
        notify(EngineSkipped(skip))
    for index, (entry, repeat) in enumerate(planned):
        log = log_file(out, entry.engine_variant.ref, "server" if entry.served else "offline")
        notify(BatchStarting(entry.label, repeat, index, len(planned), log))
        try:
            batch, launch = _batch(settings, repeat), launches[entry]
            if entry.served:
                measured, record = through_server(entry.engine, launch, batch, log, split.client)
            else:
                measured, record = through_worker(entry.engine, launch, batch, log)
            row = result(measured, entry.engine_variant, repeat, settings, batch.requests, launch.gpus)
        except CleanupError:
            raise
        except BenchError as error:
            failure = entry.engine_variant.skipped(error.message, error.hint, repeat=repeat)
            results.skipped.append(failure)
            notify(EngineSkipped(failure))
        else:
            results.results.append(row)
            if all(record.label != known.label for known in info.launches):
                info.launches.append(record)
            notify(BatchDone(row))
        _save(results, out, planned[index + 1 :])
    return out, results


def _batch(settings: OfflineSettings, repeat: int) -> Batch:
    """The prompts of a repeat: every engine gets the same, no two repeats share one. Those of the warm-up are
    others of the same lengths."""
    assert settings.warmup != "auto"
    seed = settings.seed + repeat
    content = SyntheticContent(settings.input_len, settings.output_len, settings.vocab_size)
    requests = content.take(settings.num_prompts, seed, seed)
    lengths = cycle((len(request.prompt), request.output_tokens) for request in requests)
    return Batch(
        requests,
        warmup(list(islice(lengths, settings.warmup)), settings.vocab_size, seed),
        settings.ignore_eos,
        settings.settle or 0.0,
        settings.min_duration or 0.0,
    )


def _save(results: OfflineResults, out: Path, ahead: Sequence[tuple[Entry, int]]) -> None:
    """`ahead` is not measured yet; should the run end here, its files say so."""
    pending = [
        entry.engine_variant.skipped(
            "the run ended before its measurement", "run the command again", repeat=repeat
        )
        for entry, repeat in ahead
    ]
    write_json(out / RUN, results.meta)
    results.comparisons = compare_batches(results.results)
    stored = results.model_copy(update={"skipped": [*results.skipped, *pending]})
    write_json(out / OFFLINE_RESULTS, stored)
