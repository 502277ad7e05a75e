"""Which CPUs the load generator and the engine run on.

With four physical cores or more, the client gets a quarter of them (at least one, at most eight), with all
their threads, and the engine gets the rest: neither takes time from the other or shares a core with it. With
fewer cores nothing is pinned, because a core for the client alone would cost the engine more than sharing
does. Every engine then runs at a lower priority than the client (guard.py).
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

TOPOLOGY = Path("/sys/devices/system/cpu")
MIN_CORES = 4
CLIENT_SHARE = 4
MAX_CLIENT_CORES = 8


@dataclass(frozen=True)
class CpuSplit:
    """Logical CPUs of client and engine; None if not pinned."""

    client: tuple[int, ...] | None
    engine: tuple[int, ...] | None


def physical_cores(topology: Path = TOPOLOGY) -> list[tuple[int, ...]]:
    """The logical CPUs that this process may use, grouped by physical core, in CPU order."""
    groups: dict[str, list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = topology / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        group = siblings.read_text().strip() if siblings.exists() else str(cpu)
        groups.setdefault(group, []).append(cpu)
    return [tuple(group) for group in groups.values()]


def engine_cores(cpus: Collection[int] | None) -> list[int]:
    """One logical CPU of each physical core that an engine on `cpus` may use."""
    usable = [[cpu for cpu in core if cpus is None or cpu in cpus] for core in physical_cores()]
    return [core[0] for core in usable if core]


def compute_threads(cpus: Collection[int] | None) -> int:
    """Compute threads of an engine on `cpus`: one on each physical core except one, which is for its front
    end and, where nothing is pinned, the client."""
    return max(1, len(engine_cores(cpus)) - 1)


def split(cores: list[tuple[int, ...]]) -> CpuSplit:
    """Split a machine's physical cores by the rule above."""
    if len(cores) < MIN_CORES:
        return CpuSplit(None, None)
    client = min(len(cores) // CLIENT_SHARE, MAX_CLIENT_CORES)
    flat = [tuple(sorted(cpu for core in part for cpu in core)) for part in (cores[:client], cores[client:])]
    return CpuSplit(*flat)
