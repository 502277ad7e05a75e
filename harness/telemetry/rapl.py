"""Energy that the processors count themselves (RAPL), through Linux's powercap interface.

https://www.kernel.org/doc/html/latest/power/powercap/powercap.html: one folder a package; its counter is in
microjoules and starts again at zero above `max_energy_range_uj`. Most systems let only root read it, and few
virtual machines have it.
"""

from __future__ import annotations

from pathlib import Path

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
