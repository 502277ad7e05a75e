"""What the machine takes while nothing is asked of it, by the same energy counters as a cell's."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from time import monotonic, sleep

from harness.telemetry.gpu_reader import GpuReader, joules
from harness.telemetry.rapl import ZONES, RaplReader

#: Long enough for counters that move every tenth of a second.
IDLE_S = 2.0


def idle_watts(seconds: float = IDLE_S, zones: Path = ZONES, gpus: int | None = None) -> float | None:
    """Watts of the first `gpus` GPUs, or of all, or of the processors where there is none; None, at once,
    where a counter cannot be read.
    """
    with closing(GpuReader(gpus)) as reader:
        rapl = RaplReader(zones)
        first, begin = joules(reader.read(), rapl.read()), monotonic()
        if first is None:
            return None
        sleep(seconds)
        last, end = joules(reader.read(), rapl.read()), monotonic()
    return None if last is None else (last - first) / (end - begin)
