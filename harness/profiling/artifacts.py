"""The files of a profile: found, named as the contract wants, measured and hashed."""

from __future__ import annotations

import hashlib
from pathlib import Path

from harness.errors import EngineError
from harness.spec.profile import Artifact

KINDS = {
    ".json": "torch trace",
    ".gz": "torch trace",
    ".nsys-rep": "nsys report",
    ".sqlite": "nsys sqlite",
    ".csv": "nsys stats",
}


def name_torch_traces(folder: Path) -> None:
    """Call the largest trace `trace.json[.gz]`: that of the process that runs the model.

    Raises:
        EngineError: there is none.
    """
    traces = [path for path in folder.iterdir() if path.name.endswith((".json", ".json.gz"))]
    if not traces:
        raise EngineError("the engine's profiler wrote no trace", "see the log")
    main = max(traces, key=lambda path: path.stat().st_size)
    main.rename(folder / ("trace.json.gz" if main.name.endswith(".gz") else "trace.json"))


def collect(run: Path, folder: Path, max_bytes: int) -> list[Artifact]:
    """Every file of a profile, paths relative to the run's folder.

    Raises:
        EngineError: one is larger than `max_bytes`. It is removed: nothing could open it.
    """
    for path in sorted(folder.iterdir()):
        if (size := path.stat().st_size) > max_bytes:
            path.unlink()
            raise EngineError(
                f"{path.name} had {size / 1e6:.0f} MB and was removed: the limit is {max_bytes / 1e6:.0f} MB",
                "lower --steps, or raise --max-mb",
            )
    return [
        Artifact(
            path=str(path.relative_to(run)),
            kind=KINDS.get(path.suffix, "other"),
            bytes=path.stat().st_size,
            sha256=_sha256(path),
        )
        for path in sorted(folder.iterdir())
    ]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
