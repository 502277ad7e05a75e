"""What the machine takes, and whether its GPUs compute, while no engine runs."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple

from harness.telemetry.gpu_reader import GpuReader, joules
from harness.telemetry.rapl import ZONES, RaplReader

#: Long enough for counters that move every tenth of a second.
IDLE_S = 2.0


class Idle(NamedTuple):
    """Before an engine is started.

    Attributes:
        watts: By the same energy counters as a cell's; None: not known.
        gpus_busy: Share of the last second or less in which each GPU computed; None: not reported.
    """

    watts: float | None = None
    gpus_busy: tuple[float | None, ...] = ()


def idle(seconds: float = IDLE_S, zones: Path = ZONES, gpus: int | None = None) -> Idle:
    """Of the first `gpus` GPUs, or of all; the watts of the processors where there is none. Returns at once
    where there is neither a GPU nor an energy counter."""
    with closing(GpuReader(gpus)) as reader:
        rapl = RaplReader(zones)
        first, begin = joules(reader.read(), rapl.read()), monotonic()
        if first is None and not reader.busy():
            return Idle()
        sleep(seconds)
        last, end = joules(reader.read(), rapl.read()), monotonic()
        busy = reader.busy()
    return Idle(None if first is None or last is None else (last - first) / (end - begin), busy)
