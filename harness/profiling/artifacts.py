"""The files of a profile: found, named as the contract wants, measured and hashed."""

from __future__ import annotations

import re
from pathlib import Path

from harness.errors import EngineError
from harness.files import check_contents, sha256
from harness.runs.folder import FIGURES, MANIFEST
from harness.schema.files import Model, read_stored
from harness.schema.profile import Artifact, ProfileManifest, Profiles

KINDS = {
    ".json": "torch trace",
    ".gz": "torch trace",
    ".nsys-rep": "nsys report",
    ".sqlite": "nsys sqlite",
    ".csv": "nsys stats",
    ".stacks": "stacks",
}

#: Where a process is, in the names that engines give: vLLM's `dp0_pp0_tp1_dcp0_ep1_rank1`, SGLang's `-TP-1`,
#: roseinfer's `.rank1`.
_PLACE = re.compile(r"(?:^|[._-])(dp|tp|rank)-?(\d+)(?=[._-])", re.IGNORECASE)
_NAMED = re.compile(r"trace(?:\.rank(\d+))?\.json(?:\.gz)?")


def files(folder: Path) -> list[Path]:
    """Every file of a profile, by name."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def name_torch_traces(folder: Path) -> None:
    """Call the largest trace `trace.json[.gz]`: that of the process that runs the model. Of a model that
    several ranks share that is rank 0, and the others are `trace.rankN.json[.gz]`; of several replicas the
    first.

    Raises:
        EngineError: there is none.
    """
    traces = [path for path in files(folder) if path.name.endswith((".json", ".json.gz"))]
    if not traces:
        raise EngineError("the engine's profiler wrote no trace", "see the log")
    by_rank: dict[int, list[Path]] = {}
    for path in traces:
        place = {key.lower(): int(number) for key, number in _PLACE.findall(path.name)}
        if not place.get("dp"):
            by_rank.setdefault(place.get("rank", place.get("tp", 0)), []).append(path)
    for rank, of_rank in by_rank.items():
        largest = max(of_rank, key=lambda path: path.stat().st_size)
        largest.rename(folder / f"{trace_name(rank)}{'.gz' if largest.name.endswith('.gz') else ''}")


def trace_name(rank: int) -> str:
    """Return the name of the torch trace of a rank, unless it is packed."""
    return f"trace.rank{rank}.json" if rank else "trace.json"


def torch_traces(folder: Path) -> dict[int, Path]:
    """Return the traces that `name_torch_traces` has named, by rank."""
    by_rank = {}
    for path in sorted(folder.glob("trace*.json*")):
        if match := _NAMED.fullmatch(path.name):
            by_rank[int(match[1] or 0)] = path
    return by_rank


def remove_oversized(folder: Path, max_bytes: int) -> str | None:
    """Remove every file above `max_bytes`, which nothing could open; says which. None: there was none."""
    large = [(path, size) for path in files(folder) if (size := path.stat().st_size) > max_bytes]
    if not large:
        return None
    for path, _ in large:
        path.unlink()
    names = ", ".join(f"{path.name} with {size / 1e6:.1f} MB" for path, size in large)
    return (
        f"{names} was removed: the limit is {max_bytes / 1e6:.1f} MB\n"
        "  hint: lower --steps, or raise --max-mb"
    )


def collect(run: Path, folder: Path) -> list[Artifact]:
    """Every file of a profile, paths relative to the run's folder."""
    return [
        Artifact(
            path=str(path.relative_to(run)),
            kind=KINDS.get(path.suffix, "other"),
            bytes=path.stat().st_size,
            sha256=sha256(path),
        )
        for path in files(folder)
    ]


def read_manifest(run: Path) -> ProfileManifest | None:
    """Return the captures; None where the run was not profiled. Raises UsageError when it cannot be read."""
    return _read(run, MANIFEST, ProfileManifest)


def read_profiles(run: Path) -> Profiles | None:
    """Return the figures of the captures; None without. Raises UsageError when they cannot be read."""
    return _read(run, FIGURES, Profiles)


def _read(run: Path, name: str, model: type[Model]) -> Model | None:
    check_contents(run)
    return read_stored(run / name, model, "profile the run again") if (run / name).exists() else None
