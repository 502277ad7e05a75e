"""Nsight Systems: where it is, what of it is missing, and a capture window around a running server."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.engines.base import Launch
from harness.errors import EngineError, UsageError

#: Places of a CUDA toolkit, of Nsight Systems and of Nsight Compute, newest first where several match.
PLACES = (
    "/usr/local/cuda*/bin/nsys",
    "/opt/nvidia/nsight-systems*/*/target-linux-x64/nsys",
    "/opt/nvidia/nsight-systems*/*/bin/nsys",
    "/opt/nvidia/nsight-compute*/**/host/target-linux-*/nsys",
    "/usr/local/cuda*/nsight-compute-*/host/target-linux-*/nsys",
    "/usr/local/NVIDIA-Nsight-Compute*/host/target-linux-*/nsys",
)
#: What its importer loads and minimal systems lack.
LIBRARIES = ("libdw.so.1", "libelf.so.1")
#: CUDA and NVTX alone, node by node of CUDA graphs, no sampling and no context switches: small files.
TRACE = ("-t", "cuda,nvtx", "--cuda-graph-trace=node", "--trace-fork-before-exec=true")
QUIET = ("-s", "none", "--cpuctxsw=none")
STATS = ("cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum", "nvtx_sum")
TIMEOUT_S = 300.0


def find_nsys(named: Path | None = None, places: Iterable[str] = PLACES) -> Path:
    """The `nsys` to use: the one named, else on PATH, else in a CUDA or Nsight folder.

    Raises:
        UsageError: there is none, it does not start, or a library that it needs is missing.
    """
    if named is not None and not named.is_file():
        raise UsageError(f"{named} is no nsys", "name the program itself, such as …/target-linux-x64/nsys")
    on_path = shutil.which("nsys")
    programs = [named] if named else [Path(on_path)] if on_path else list(_search(places))
    if not programs:
        raise UsageError(
            "nsys is not on PATH nor in a CUDA or Nsight folder",
            "install Nsight Systems, or name it with --nsys; --tool torch needs none",
        )
    if missing := [name for name in LIBRARIES if not _loads(name)]:
        raise UsageError(
            f"{' and '.join(missing)} missing: nsys could record but not write its report",
            "install libdw1 and libelf1, or unpack them and name their folder in LD_LIBRARY_PATH",
        )
    _run(programs[0], "--version")
    return programs[0]


def _search(places: Iterable[str]) -> Iterable[Path]:
    for place in places:
        yield from sorted(Path("/").glob(place.lstrip("/")), reverse=True)


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


@dataclass(frozen=True)
class NsysSession:
    """One server under nsys: nothing is recorded but between `start` and `stop`."""

    nsys: Path
    output: Path
    name: str = field(default_factory=lambda: f"bench-{os.getpid()}-{uuid.uuid4().hex[:8]}")

    def around(self, launch: Launch) -> Launch:
        """The same server as a child of nsys, which sees its worker processes too."""
        prefix = (str(self.nsys), "launch", f"--session-new={self.name}", *TRACE)
        return replace(launch, argv=(*prefix, *launch.argv))

    def start(self) -> None:
        """Begin to record. Raises EngineError with what nsys said."""
        _run(self.nsys, "start", f"--session={self.name}", "-o", str(self.output), "-f", "true", *QUIET)

    def stop(self) -> None:
        """End the recording and wait for its report. Raises EngineError with what nsys said."""
        _run(self.nsys, "stop", f"--session={self.name}")

    def export(self) -> None:
        """Write the report's SQLite export and its summaries next to it. Raises EngineError."""
        report = self.output.with_suffix(".nsys-rep")
        if not report.is_file():
            raise EngineError(f"nsys wrote no {report.name}", "see the engine's log")
        sqlite = self.output.with_suffix(".sqlite")
        _run(
            self.nsys, "export", "--type", "sqlite", "--force-overwrite=true", "-o", str(sqlite), str(report)
        )
        reports = [word for name in STATS for word in ("--report", name)]
        stats = (*reports, "--format", "csv", "--force-overwrite=true", "--output", str(self.output))
        _run(self.nsys, "stats", *stats, str(sqlite))


def _run(nsys: Path, *arguments: str) -> None:
    try:
        done = subprocess.run(
            [str(nsys), *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"{nsys} {arguments[0]} failed: {error}", "see its own documentation") from None
    if done.returncode:
        output = " ".join((done.stderr or done.stdout).split())
        raise EngineError(f"{nsys} {arguments[0]} failed: {output[-500:]}", "see its own documentation")
