"""Power of the machine, and use of its GPUs, while no engine runs; energy that processors count (RAPL)."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple

from harness.telemetry.gpu import GpuReader, joules

#: Long enough for counters that move every tenth of a second.
IDLE_S = 2.0


ZONES = Path("/sys/class/powercap")


class RaplReader:
    """Sums the counters of all packages; one that starts again at zero is noticed at the next reading."""

    def __init__(self, zones: Path = ZONES) -> None:
        self._packages = sorted(zone for zone in zones.glob("intel-rapl:*") if zone.name.count(":") == 1)
        self._last: dict[Path, int] = {}
        self._total_uj = 0

    def read(self) -> float | None:
        """Joules since the first reading; None where there is no counter, or one cannot be read."""
        if not self._packages:
            return None
        try:
            for zone in self._packages:
                now = int((zone / "energy_uj").read_text())
                rise = now - self._last.get(zone, now)
                if rise < 0:
                    rise += int((zone / "max_energy_range_uj").read_text())
                self._total_uj += rise
                self._last[zone] = now
        except (OSError, ValueError):
            return None
        return self._total_uj / 1e6


class Idle(NamedTuple):
    """Before an engine is started.

    Attributes:
        watts: By the same energy counters as a cell's; None: not known.
        gpus_busy: Share of the last second or less in which each GPU computed; None: not reported.
    """

    watts: float | None = None
    gpus_busy: tuple[float | None, ...] = ()


def idle(seconds: float = IDLE_S, zones: Path = ZONES, gpus: int | None = None) -> Idle:
    """Measure the first `gpus` GPUs, or all; without one, the watts of the processors. Returns at once if
    there is neither a GPU nor an energy counter."""
    with closing(GpuReader(gpus)) as reader:
        rapl = RaplReader(zones)
        first, begin = joules(reader.read(), rapl.read()), monotonic()
        if first is None and not reader.busy():
            return Idle()
        sleep(seconds)
        last, end = joules(reader.read(), rapl.read()), monotonic()
        busy = reader.busy()
    return Idle(None if first is None or last is None else (last - first) / (end - begin), busy)
