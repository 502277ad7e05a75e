"""Values that go between a node of a cluster and the driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from harness.loadgen.load_plan import Target
from harness.models.model_folder import tokenizer_folder
from harness.schema.run_info import LaunchRecord


@dataclass(frozen=True)
class NodeFacts:
    """Description of a node. `machine` is the same for processes that see each other's PIDs."""

    name: str
    address: str
    cores: int
    physical_cores: int
    niceness: int
    source: str
    machine: str
    pid: int


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer by its folder on the driver's machine and by its name."""

    path: Path
    name: str

    @property
    def folder(self) -> Path:
        """Folder on this node: the same, where it is shared. Raises UsageError."""
        return self.path if self.path.is_dir() else tokenizer_folder(self.name)


@dataclass(frozen=True)
class Ready:
    """A server that is ready on a node."""

    target: Target
    served_name: str
    record: LaunchRecord


def this_kernel() -> str:
    """The same for all processes that see each other's PIDs, and reach each other by 127.0.0.1."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return " ".join([boot, *(str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("pid", "net"))])


class Part(NamedTuple):
    """Part `number`, from 0, of `of` equal parts of a node."""

    number: int
    of: int

    def cores(self, cores: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Select the part's cores; all of them if there is less than one for each part."""
        each = len(cores) // self.of
        return list(cores[self.number * each : (self.number + 1) * each] if each else cores)


WHOLE = Part(0, 1)
