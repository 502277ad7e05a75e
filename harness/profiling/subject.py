"""The subject of a profile: engines of a run, and a sample of its load at the level of the benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import ceil
from pathlib import Path

import numpy as np

from harness.engines.base import EngineVariant
from harness.engines.selection import find_engines, make_engine_variants
from harness.errors import UsageError
from harness.files import write_json
from harness.profiling.level import measure_levels
from harness.runs.events import Notify
from harness.runs.folder import RUN, begin_folder, read_info
from harness.runs.reader import read_raw
from harness.runs.resolved import Resolved, make_info, resolve_online
from harness.schema.load import Load, heaviest
from harness.schema.online_settings import OnlineSettings
from harness.schema.profile import Level
from harness.schema.run_info import RunInfo
from harness.telemetry import gpu
from harness.telemetry.machine import environment
from harness.workload import PlannedRequest
from harness.workload.workload import Workload

#: The sample lasts about this long at the benchmark's rate; it ends as soon as the capture has.
SAMPLE_S = 40.0
#: Bounds of its size, in requests in flight and in requests.
MIN_TURNS, MAX_REQUESTS = 16, 5000
#: Requests kept in flight where the load of a batch is larger.
MAX_IN_FLIGHT = 256


@dataclass(frozen=True)
class Subject:
    """A run and what of it is profiled. `load` is the benchmark's; a batch is kept in flight."""

    folder: Path
    info: RunInfo
    resolved: Resolved
    load: Load
    levels: dict[str, Level]

    @property
    def engine_variants(self) -> list[EngineVariant]:
        return self.resolved.engine_variants

    def level(self, engine_variant: EngineVariant) -> Level:
        """Return the level that the benchmark measured; without a benchmark that which the load may have."""
        if engine_variant.label in self.levels:
            return self.levels[engine_variant.label]
        most = self.load.in_flight or MAX_IN_FLIGHT
        in_flight = min(self.resolved.workload.source.in_flight(), most, MAX_IN_FLIGHT)
        return Level(in_flight=in_flight, running=in_flight)

    def sample(self, engine_variant: EngineVariant) -> list[PlannedRequest]:
        """Requests to be kept in flight, with the lengths of the run's load and prompts of their own."""
        level, workload = self.level(engine_variant), self.resolved.workload
        count = MIN_TURNS * level.in_flight
        if level.step_ms is not None:
            tokens = workload.source.record.output_tokens / max(1, workload.source.record.requests)
            count = max(count, ceil(level.in_flight * SAMPLE_S * 1e3 / (level.step_ms * max(tokens, 1))))
        return list(_cycle(workload, self.load, min(count, MAX_REQUESTS), self.resolved.settings.seed))


def _cycle(workload: Workload, load: Load, size: int, seed: int) -> Iterator[PlannedRequest]:
    index = 0
    for turn in count():
        drawn = int(np.random.SeedSequence([seed, 0x9F0F, turn]).generate_state(1, np.uint64)[0])
        for request in workload.requests(load, drawn, drawn):
            if index == size:
                return
            if request.answers:  # its prompt is not known before these are
                continue
            yield replace(request, index=index, t_sched_s=None, after=(), think_s=None, session=None)
            index += 1


def begin_run(settings: OnlineSettings, command: list[str], notify: Notify = lambda event: None) -> Path:
    """A new run's folder with its `run.json`, in which nothing is measured.

    Raises:
        UsageError: an unknown engine, or a folder that cannot be written to.
    """
    installations, _ = find_engines(make_engine_variants(settings))
    info = make_info(settings, command, installations, environment())
    folder = begin_folder(settings.out, info.kind, notify)
    write_json(folder / RUN, info)
    return folder


def _in_flight(settings: OnlineSettings) -> OnlineSettings:
    """Return settings that keep the prompts of a batch in flight; those of other loads as they are."""
    if settings.num_prompts is None:
        return settings
    in_flight = [min(settings.num_prompts, MAX_IN_FLIGHT)]
    return settings.model_copy(
        update={"num_prompts": None, "concurrency": in_flight, "n": settings.num_prompts}
    )


def open_subject(
    folder: Path, load: Load | None, notify: Notify, engines: Sequence[str] | None = None
) -> Subject:
    """The subject of a run's folder, measured before or not.

    Args:
        load: of the kind and value of one of the run's; None: its heaviest.
        engines: some of the run's, NAME or NAME@VARIANT; None: all.

    Raises:
        UsageError: the folder holds no run, the run has no such load or engine, no engine of it is there, or
            it is of a GPU and there is none.
    """
    info = read_info(folder)
    settings = _in_flight(info.settings)
    if settings.device == "cuda" and not gpu.available():
        raise UsageError(
            "the run is of a GPU, and there is no usable NVIDIA GPU here", "profile on a machine with a GPU"
        )
    if engines is not None:
        run_has = {str(engine): engine for engine in settings.engines}
        if (others := sorted(set(engines) - set(run_has))) or not engines:
            raise UsageError(
                f"the run has no {', '.join(map(repr, others)) or 'such engine'}",
                f"it has {', '.join(run_has)}",
            )
        settings = settings.model_copy(update={"engines": [run_has[name] for name in dict.fromkeys(engines)]})
    chosen = heaviest(settings.loads)
    if load is not None:
        same = [each for each in settings.loads if (each.kind, each.value) == (load.kind, load.value)]
        if not same:
            loads = ", ".join(map(str, settings.loads))
            raise UsageError(f"{load} is not one of the run's loads", f"it has {loads}")
        [chosen] = same
    resolved = resolve_online(settings.model_copy(update={"calibrate": False}), notify)
    levels: dict[str, Level] = {}
    if (folder / "requests.parquet").is_file() or (folder / "raw").is_dir():
        records = read_raw(folder).records
        every = measure_levels(records.requests, records.chunks)
        levels = {label: level for (label, at), level in every.items() if at == chosen}
    return Subject(folder, info, resolved, chosen, levels)
