"""The history as offline runs of Weights & Biases: `wandb sync FOLDER/wandb/offline-run-*` uploads them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from harness.errors import UsageError
from harness.history.tracked import Tracked


def to_wandb(found: Iterable[Tracked], folder: Path, project: str) -> tuple[Path, int]:
    """Write a run folder for each. Returns the folder with all of them, and how many were written.

    Settings are a run's config, estimates its summary, and `repeats/NAME` its history with a step for each
    repeat. A run has the same id whenever it is exported, so that nothing is uploaded twice.

    Raises:
        UsageError: wandb is not installed, or cannot write.
    """
    try:
        import wandb
    except ImportError:
        raise UsageError("--format wandb needs Weights & Biases' package", "pip install wandb") from None
    folder.mkdir(parents=True, exist_ok=True)
    written = 0
    try:
        for result in found:
            run = wandb.init(
                project=project,
                id=hashlib.sha256(result.key.encode()).hexdigest()[:16],
                name=result.name,
                group=result.run,
                job_type=str(result.settings["engine"]),
                config={**result.settings, "created": result.created, "revision": result.revision},
                dir=str(folder.resolve()),
                mode="offline",
                resume="allow",
                settings=wandb.Settings(
                    silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True,
                    x_disable_meta=True,
                ),
            )  # fmt: skip
            for step in range(max(map(len, result.each.values()), default=0)):
                run.log(
                    {
                        f"repeats/{name}": values[step]
                        for name, values in result.each.items()
                        if step < len(values)
                    },
                    step=step,
                )
            run.summary.update(result.values)
            run.finish()
            written += 1
    except wandb.Error as error:
        raise UsageError(
            f"wandb cannot write to {folder}: {error}", "name another folder with --out"
        ) from None
    return folder.resolve() / "wandb", written
