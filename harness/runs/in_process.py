"""Measure a batch through an engine's own API, in a process of that engine's interpreter."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pyarrow as pa

from harness.engines import run_worker
from harness.engines.base import EngineSettings
from harness.engines.local import LocalEngine
from harness.engines.process.engine_server import inherited
from harness.engines.process.guard import Order
from harness.engines.process.tree import Guarded, describe_exit
from harness.errors import EngineError
from harness.loadgen.load_plan import Progress
from harness.metrics.samples import split
from harness.plugins import adapter_call
from harness.records.cell import MEASURED, RECEIVED, Answers, CellRecords, Expected, cell_records
from harness.runs.events import CellProgress, EngineWarming, Notify
from harness.runs.resolved import Resolved
from harness.runs.run_state import Run
from harness.runs.schedule import Cell
from harness.schema.run_info import LaunchRecord
from harness.telemetry.cell_monitor import CellMonitor
from harness.telemetry.gpu import memory_restored
from harness.workload import PlannedRequest

SCRIPT = Path(run_worker.__file__)


class BatchTimes(msgspec.Struct):
    """One batch that a worker has generated, by the monotonic clock in seconds.

    `token_times` has the first and the last token's time of each prompt; None where the API tells only when
    the whole batch was done.
    """

    begin: float
    end: float
    output_tokens: list[int]
    token_times: list[tuple[float, float]] | None = None


class _Result(msgspec.Struct):
    """The worker's result file: seconds until the engine was ready, and the batches that count."""

    ready_s: float
    batches: list[BatchTimes]


@dataclass(frozen=True)
class Batch:
    """Requests of a batch: `warmup` first, then `requests` for `settle_s` seconds, both untimed; then
    `requests` again until `min_s` seconds have passed, at least once."""

    requests: Sequence[PlannedRequest]
    warmup: Sequence[PlannedRequest]
    ignore_eos: bool
    settle_s: float = 0.0
    min_s: float = 0.0


def measure_in_process(run: Run, resolved: Resolved, cell: Cell, log: Path, notify: Notify) -> None:
    """Measure a cell whose engine has no server: start its worker, keep what came back.

    Raises:
        EngineError: The engine is not installed, its worker failed, or an answer has another length.
        CleanupError: The worker could not be ended.
    """
    settings, label = resolved.settings, cell.engine_variant.label
    engine = resolved.engines[label]
    assert isinstance(engine, LocalEngine)
    workload = resolved.workload
    waves = workload.warmup_waves(cell.load_seed)
    batch = Batch(
        workload.requests(cell.load, cell.load_seed, cell.shape_seed),
        [request for wave in waves for request in wave],
        settings.ignore_eos,
        settings.settle or 0.0,
        settings.measured_s,
    )
    launch = resolved.engine_settings(cell.engine_variant)
    notify(EngineWarming(label, None, len(batch.warmup)))
    notify(CellProgress(cell, len(batch.requests), Progress(0, 0, 0)))
    with CellMonitor(gpus=launch.gpus) as monitor:
        batches, record = time_batches(engine, launch, batch, log)
    records = batch_records(cell, batch, batches)
    machine = monitor.summary(batches[0].begin, batches[-1].end)
    run.launched(record)
    [group] = split(records.requests, records.chunks, settings.cut)
    run.keep(cell, records, group, notify, machine=machine)


def batch_records(cell: Cell, batch: Batch, batches: Sequence[BatchTimes]) -> CellRecords:
    """Return the raw tables of a batch, times in seconds since its first prompt was handed over.

    A request ends when the call that generated it returned. Where the API does not tell when tokens came,
    the last one came then, and when the first one came is not known.

    Raises:
        EngineError: An answer is missing, or has another number of tokens than was asked for.
    """
    label, t0 = cell.engine_variant.label, batches[0].begin
    rows: list[dict[str, object]] = []
    wrong: list[tuple[int, int]] = []
    for generated in batches:
        if (answered := len(generated.output_tokens)) != len(batch.requests):
            raise EngineError(f"{label} answered {answered} of {len(batch.requests)} prompts", "see its log")
        for index, request in enumerate(batch.requests):
            tokens, most = generated.output_tokens[index], request.output_tokens
            if not (most if batch.ignore_eos else 1) <= tokens <= most:
                wrong.append((tokens, most))
            times = generated.token_times
            first, last = (None, generated.end) if times is None else times[index]
            rows.append(
                {
                    "request": len(rows),
                    "t_sched": generated.begin - t0,
                    "t_sent": generated.begin - t0,
                    "t_first": None if first is None else first - t0,
                    "t_answer": None if first is None else first - t0,
                    "t_last": last - t0,
                    "t_end": generated.end - t0,
                    "completion_tokens": tokens,
                    "prompt_tokens": len(request.prompt),
                    "chunks": 0,
                    "token_source": "token_ids",
                }
            )
    if wrong:
        raise EngineError(
            f"{label} generated a wrong number of tokens for {len(wrong)} of {len(rows)} prompts: "
            f"{wrong[0][0]} instead of {wrong[0][1]}",
            "leave this engine out, or look at its log",
        )
    answers = Answers(t0, pa.Table.from_pylist(rows, schema=MEASURED), RECEIVED.empty_table())
    expected = [Expected(len(request.prompt), request.output_tokens) for request in batch.requests]
    return cell_records(answers, expected * len(batches), cell.identity)


def time_batches(
    engine: LocalEngine, settings: EngineSettings, batch: Batch, log: Path
) -> tuple[list[BatchTimes], LaunchRecord]:
    """Time the batch in the engine's own process, which is gone afterwards. Its output is appended to `log`.

    Raises:
        EngineError: The engine is not installed, or the worker failed; the message quotes its log.
        CleanupError: The process could not be ended, or holds memory of a GPU.
    """
    installation = engine.installed()
    label, variant = settings.engine_variant.label, settings.engine_variant.variant
    engine.check_offline(settings)
    with adapter_call(engine.display, "offline"):
        factory = engine.offline(installation, settings)
    chosen = {name: engine.named(value, installation) for name, value in (variant.offline or {}).items()}
    arguments = {**factory.arguments, **chosen}
    env = {**engine.gpus(settings), **factory.env, **installation.env, **variant.env}
    job = {
        "target": factory.target,
        "arguments": arguments,
        "prompts": [request.prompt.tolist() for request in batch.requests],
        "warmup": [request.prompt.tolist() for request in batch.warmup],
        "prompt_limits": [request.output_tokens for request in batch.requests],
        "warmup_limits": [request.output_tokens for request in batch.warmup],
        "ignore_eos": batch.ignore_eos,
        "settle_s": batch.settle_s,
        "min_s": batch.min_s,
    }
    hygiene = memory_restored(label) if settings.device == "cuda" else nullcontext()
    with hygiene, TemporaryDirectory(prefix="rosebench-offline-") as scratch:
        job_file, result_file = Path(scratch, "job.json"), Path(scratch, "result.json")
        job_file.write_text(json.dumps(job))
        argv = [str(installation.python), str(SCRIPT), str(job_file), str(result_file)]
        codes = engine.codes(installation, tuple(argv), env)
        process = Guarded(label, Order(argv, os.environ | env, str(log), settings.cpus))
        code = process.finish()
        assert code is not None  # it may take a week
        if code != 0 or not result_file.exists():
            raise EngineError(f"{label} ended with {describe_exit(code)}: {process.cause()}", f"see {log}")
        result = msgspec.json.decode(result_file.read_bytes(), type=_Result)
    record = engine.launch_record(
        settings,
        installation,
        argv=[*argv[:2], "JOB", "RESULT"],
        env=env,
        inherited=inherited(os.environ, env, engine.env_prefixes),
        settings=arguments,
        ready_s=round(result.ready_s, 3),
        codes=codes,
    )
    return result.batches, record
