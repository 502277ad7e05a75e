"""The files of a profile: found, named as the contract wants, measured and hashed."""

from __future__ import annotations

import hashlib
from pathlib import Path

from harness.errors import EngineError
from harness.schema.profile import Artifact

KINDS = {
    ".json": "torch trace",
    ".gz": "torch trace",
    ".nsys-rep": "nsys report",
    ".sqlite": "nsys sqlite",
    ".csv": "nsys stats",
}


def files(folder: Path) -> list[Path]:
    """Every file of a profile, by name."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def name_torch_traces(folder: Path) -> None:
    """Call the largest trace `trace.json[.gz]`: that of the process that runs the model.

    Raises:
        EngineError: there is none.
    """
    traces = [path for path in files(folder) if path.name.endswith((".json", ".json.gz"))]
    if not traces:
        raise EngineError("the engine's profiler wrote no trace", "see the log")
    main = max(traces, key=lambda path: path.stat().st_size)
    main.rename(folder / ("trace.json.gz" if main.name.endswith(".gz") else "trace.json"))


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
            sha256=_sha256(path),
        )
        for path in files(folder)
    ]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
