"""The history as an MLflow database: `mlflow ui --backend-store-uri sqlite:///FOLDER/mlflow.db` shows it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from harness.errors import UsageError
from harness.history.tracked import Tracked

FILE = "mlflow.db"
#: The tag by which a run is found again.
KEY = "rosebench.key"
_COMMIT, _NAME = "mlflow.source.git.commit", "mlflow.runName"


def to_mlflow(found: Iterable[Tracked], folder: Path, experiment: str) -> tuple[Path, int]:
    """Add what is not there yet. Returns the file, and how many runs were added.

    Each is a run of MLflow: settings are its parameters, estimates its metrics, and `repeats/NAME` has a step
    for each repeat.

    Raises:
        UsageError: MLflow is not installed, or the database cannot be used.
    """
    try:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param, RunTag
        from mlflow.exceptions import MlflowException
    except ImportError:
        raise UsageError("--format mlflow needs MLflow", "pip install mlflow") from None
    logging.getLogger("mlflow").setLevel(logging.WARNING)  # it tells of each table that it makes
    folder.mkdir(parents=True, exist_ok=True)
    file, added = folder.resolve() / FILE, 0
    try:
        client = MlflowClient(tracking_uri=f"sqlite:///{file}")
        known = client.get_experiment_by_name(experiment)
        place = (folder.resolve() / "artifacts").as_uri()
        where = (
            known.experiment_id if known else client.create_experiment(experiment, artifact_location=place)
        )
        for result in found:
            if client.search_runs([where], f"tags.`{KEY}` = '{_quoted(result.key)}'", max_results=1):
                continue
            at = _milliseconds(result.created)
            tags = {KEY: result.key, "rosebench.run": result.run, _NAME: result.name}
            if result.revision is not None:
                tags[_COMMIT] = result.revision
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
    except MlflowException as error:
        raise UsageError(f"{file} cannot be used: {error}", "name another folder with --out") from None
    return file, added


def _quoted(text: str) -> str:
    return text.replace("'", "''")


def _milliseconds(created: str) -> int:
    return int(datetime.fromisoformat(created).timestamp() * 1000)
