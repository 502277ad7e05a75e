"""Runs the offline worker of an engine, by that engine's own interpreter, as a guarded process."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from harness.engines import run_worker
from harness.engines.base import EngineSettings
from harness.engines.inherited import inherited
from harness.engines.local import LocalEngine
from harness.engines.process.tree import Guarded, describe_exit
from harness.errors import EngineError
from harness.plugins import adapter_call
from harness.runs.batch.measured import Measured
from harness.schema.run_info import LaunchRecord
from harness.telemetry.gpu import memory_restored
from harness.workload import PlannedRequest

SCRIPT = Path(run_worker.__file__)


class _Event(msgspec.Struct):
    """A line of the worker's result file."""

    event: str
    seconds: float
    output_tokens: list[int] = []
    batches: int = 1
    end: float = 0.0


@dataclass(frozen=True)
class Batch:
    """What is generated: `warmup` first, then `requests`, all at once, for `settle_s` seconds, both untimed;
    then `requests` again until `min_s` seconds have passed, at least once."""

    requests: Sequence[PlannedRequest]
    warmup: Sequence[PlannedRequest]
    ignore_eos: bool
    settle_s: float = 0.0
    min_s: float = 0.0


def through_worker(
    engine: LocalEngine, settings: EngineSettings, batch: Batch, log: Path
) -> tuple[Measured, LaunchRecord]:
    """Time one batch in the engine's own process, which is gone afterwards. Its output is appended to `log`.

    Raises:
        EngineError: not installed, or the worker failed; the message quotes its log.
        CleanupError: it could not be ended, or holds memory of a GPU.
    """
    installation = engine.installed()
    label, variant = settings.engine_variant.label, settings.engine_variant.variant
    engine.check_offline(settings)
    with adapter_call(engine.display, "offline"):
        factory = engine.offline(installation, settings)
    arguments = {**factory.arguments, **(variant.offline or {})}
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
        job_file, result_file = Path(scratch, "job.json"), Path(scratch, "result.jsonl")
        job_file.write_text(json.dumps(job))
        argv = [str(installation.python), str(SCRIPT), str(job_file), str(result_file)]
        codes = engine.codes(installation, tuple(argv), env)
        process = Guarded(label, argv, os.environ | env, log, settings.cpus)
        try:
            while (code := process.wait(60.0)) is None:
                pass
        finally:
            process.stop()
        lines = result_file.read_bytes().splitlines() if code == 0 and result_file.exists() else []
        events = {event.event: event for event in (msgspec.json.decode(line, type=_Event) for line in lines)}
        if "result" not in events:
            raise EngineError(f"{label} ended with {describe_exit(code)}: {process.cause()}", f"see {log}")
    record = LaunchRecord(
        engine=engine.name,
        variant=settings.engine_variant.ref.variant,
        label=label,
        about=variant.about,
        version=installation.version,
        gpus=settings.gpus,
        argv=[*argv[:2], "JOB", "RESULT"],
        env=env,
        inherited=inherited(os.environ, env, engine.env_prefixes),
        settings=arguments,
        ready_s=round(events["ready"].seconds, 3),
        codes=codes,
    )
    found = events["result"]
    window = (found.end - found.seconds, found.end)
    return Measured(found.seconds, tuple(found.output_tokens), found.batches, window), record
