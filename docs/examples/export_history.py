"""Write a history for MLflow or Weights & Biases, offline and by their own packages.

    python export_history.py history.sqlite --format mlflow --out tracked
    python export_history.py history.sqlite --format wandb --out tracked

`mlflow ui --backend-store-uri sqlite:///tracked/mlflow.db` shows the first, `wandb sync
tracked/wandb/offline-run-*` uploads the second. Each engine at each load of a run is a run there: settings
are its parameters, estimates and the ends of their intervals its metrics, and `repeats/NAME` has a step for
each repeat.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pydantic import JsonValue

from harness.history.store import Store
from harness.metrics.intervals import own_interval
from harness.schema.load import load_text
from harness.schema.metrics import METRICS

MLFLOW_FILE = "mlflow.db"
#: The tag of a run in MLflow that keeps it from being added twice.
KEY = "rosebench.key"


@dataclass(frozen=True)
class Tracked:
    """One engine at one load of a run.

    Attributes:
        name: The engine and the load, for people.
        key: The same whenever it is exported.
        values: Estimates over all repeats, with `_low` and `_high` of the 95 % interval if there is one.
        each: Estimates of each repeat, in their order, by the same names.
    """

    run: str
    name: str
    key: str
    created: str
    revision: str | None
    settings: dict[str, JsonValue]
    values: dict[str, float]
    each: dict[str, list[float]]


def tracked(store: Store) -> Iterator[Tracked]:
    """Yield everything in the store, runs from the oldest to the newest."""
    for past in store.runs():
        settings = store.settings(past)
        for engine, variant, label, load in store.measured(past):
            values: dict[str, float] = {}
            each: dict[str, list[float]] = {}
            for (metric, statistic), estimate in store.estimates(past, label, load).items():
                if estimate.missing:
                    continue
                short = METRICS[metric].short_name if metric in METRICS else metric
                name = short if metric == statistic else f"{short}_{statistic}"
                values[name] = estimate.value
                each[name] = [float(value) for value in estimate.each]
                if (ends := own_interval(estimate)) is not None:
                    values[f"{name}_low"], values[f"{name}_high"] = ends
            about: dict[str, JsonValue] = {"engine": engine, "variant": variant, "label": label}
            about |= {"load": str(load), "machine": past.machine, "rosebench": past.version}
            about |= {f"load_{name}": value for name, value in load.model_dump().items()}
            yield Tracked(
                past.name,
                f"{label}, {load}",
                f"{past.name}/{past.created}/{label}/{load_text(load)}",
                past.created,
                past.revision,
                {name: value for name, value in (settings | about).items() if value is not None},
                values,
                each,
            )


def to_mlflow(results: Iterable[Tracked], folder: Path, experiment: str) -> tuple[Path, int]:
    """Add the runs that the database lacks. Returns the file, and how many were added."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, RunTag

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    file, added = folder.resolve() / MLFLOW_FILE, 0
    client = MlflowClient(tracking_uri=f"sqlite:///{file}")
    present = client.get_experiment_by_name(experiment)
    place = (folder.resolve() / "artifacts").as_uri()
    where = (
        present.experiment_id if present else client.create_experiment(experiment, artifact_location=place)
    )
    for result in results:
        if client.search_runs([where], f"tags.`{KEY}` = '{_quoted(result.key)}'", max_results=1):
            continue
        at = _milliseconds(result.created)
        tags = {KEY: result.key, "rosebench.run": result.run, "mlflow.runName": result.name}
        if result.revision is not None:
            tags["mlflow.source.git.commit"] = result.revision
        run_id = client.create_run(where, start_time=at, tags=tags).info.run_id
        client.log_batch(
            run_id,
            metrics=[Metric(name, value, at, 0) for name, value in result.values.items()],
            params=[Param(name, str(value)) for name, value in result.settings.items()],
            tags=[RunTag("mlflow.note.content", f"{result.name} of {result.run}")],
        )
        for name, values in result.each.items():
            steps = [Metric(f"repeats/{name}", value, at, step) for step, value in enumerate(values)]
            client.log_batch(run_id, metrics=steps)
        client.set_terminated(run_id, end_time=at)
        added += 1
    return file, added


def _quoted(text: str) -> str:
    return text.replace("'", "''")


def _milliseconds(created: str) -> int:
    return int(datetime.fromisoformat(created).timestamp() * 1000)


def to_wandb(results: Iterable[Tracked], folder: Path, project: str) -> tuple[Path, int]:
    """Write a folder for each run. Returns the folder with all of them, and how many were written.

    A run has the same id whenever it is exported, so that nothing is uploaded twice.
    """
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    written = 0
    for result in results:
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
    return folder.resolve() / "wandb", written


def main() -> None:
    """Export the history that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("--format", choices=("mlflow", "wandb"), required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--project", default="rosebench", help="experiment of MLflow, project of W&B")
    arguments = parser.parse_args()
    write = to_mlflow if arguments.format == "mlflow" else to_wandb
    with Store.open(arguments.store) as store:
        place, count = write(tracked(store), arguments.out, arguments.project)
    print(f"{count} runs written to {place}")


if __name__ == "__main__":
    main()
