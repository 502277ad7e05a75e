"""What the machine takes while nothing is asked of it, by the same energy counters as a cell's."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from time import monotonic, sleep

from harness.telemetry.gpu_reader import GpuReader
from harness.telemetry.rapl import ZONES, RaplReader

#: Long enough for counters that move every tenth of a second.
IDLE_S = 2.0


def idle_watts(seconds: float = IDLE_S, zones: Path = ZONES, gpus: int | None = None) -> float | None:
    """Watts of the first `gpus` GPUs, or of all, or of the processors where there is none; None, at once,
    where a counter cannot be read.
    """
    with closing(GpuReader(gpus)) as reader:
        rapl = RaplReader(zones)
        first, begin = _joules(reader, rapl), monotonic()
        if first is None:
            return None
        sleep(seconds)
        last, end = _joules(reader, rapl), monotonic()
    return None if last is None else (last - first) / (end - begin)


def _joules(gpus: GpuReader, rapl: RaplReader) -> float | None:
    """What the counters say; None where one of the GPUs' is not there."""
    counters = [gpu.energy_j for gpu in gpus.read()] or [rapl.read()]
    known = [joules for joules in counters if joules is not None]
    return sum(known) if len(known) == len(counters) else None
