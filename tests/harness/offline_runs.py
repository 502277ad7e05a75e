"""Run folders of invented speeds, as `bench offline` leaves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter

from harness.records.columns import CHUNKS, REQUESTS, SERVER
from harness.records.parquet import write_table
from harness.runs.reader import recompute, regroup
from harness.schema.load import Batch, load_text
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import BatchRow, OnlineResults, Skipped
from harness.schema.run_info import RunInfo, Versions
from harness.schema.settings import OfflineSettings

PROMPTS, INPUT, OUTPUT = 8, 32, 16
SERVED, IN_PROCESS = "roseinfer", "roseinfer (in-process)"


def write_run(
    folder: Path,
    rates: Mapping[str, Sequence[float]],
    *,
    failed: Sequence[tuple[str, int]] = (),
    day: int = 1,
    environment: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """Write the folder of a run.

    Args:
        rates: Output tokens a second of each repeat, by label.
        failed: Labels and repeats without a result.
        day: Of the month in which it was made.
    """
    given: dict[str, Any] = {"model": "random:gpt2", "device": "cpu", "dtype": "bf16", "warmup": PROMPTS}
    given |= {"num_prompts": PROMPTS, "input_len": INPUT, "output_len": OUTPUT, "max_model_len": 1024}
    given |= {"repeats": max(map(len, rates.values())), "cpu_threads": 1}
    batch = OfflineSettings.model_validate(given | settings)
    info = RunInfo(
        kind="offline",
        created=f"2026-03-{day:02d}T12:00:00Z",
        command=["bench", "offline"],
        settings=OnlineSettings.of_batch(batch),
        environment=dict(environment or {"cpu": {"model": "a CPU", "usable_cores": 2}}),
        versions=Versions(git_rev=f"{day:040x}", rosebench="0", python="3.12"),
        order=[(label, repeat) for label, each in rates.items() for repeat in range(len(each))],
    )
    seconds = {
        (label, repeat): PROMPTS * OUTPUT / rate
        for label, each in rates.items()
        for repeat, rate in enumerate(each)
        if (label, repeat) not in failed
    }
    [load] = info.settings.loads
    skipped = [
        Skipped(engine="roseinfer", label=label, load=load, repeat=repeat, reason="it died")
        for label, repeat in failed
    ]
    return write_batches(folder, info, seconds, (INPUT, OUTPUT), skipped)


def write_batches(
    folder: Path,
    info: RunInfo,
    seconds: Mapping[tuple[str, int], float],
    tokens: tuple[int, int],
    skipped: Sequence[Skipped] = (),
) -> Path:
    """Write the folder of a run whose batches took so long, by label and repeat.

    Args:
        tokens: Of each prompt and of each answer.
    """
    folder.mkdir(parents=True)
    [load] = info.settings.loads
    assert isinstance(load, Batch)
    rows = [
        {
            "cell": cell, "engine": label.split()[0].lower(), "variant": "x" if "(x" in label else None,
            "label": label, "load": load_text(load), "repeat": repeat, "request": request,
            "input_tokens": tokens[0], "output_tokens": tokens[1], "t_sched": 0.0, "t_sent": 0.0,
            "t_last": took, "t_end": took, "completion_tokens": tokens[1], "chunks": 0,
        }
        for cell, ((label, repeat), took) in enumerate(seconds.items())
        for request in range(load.prompts)
    ]  # fmt: skip
    requests = pa.Table.from_pylist(rows, schema=REQUESTS)
    write_table(folder / "requests.parquet", requests)
    write_table(folder / "chunks.parquet", CHUNKS.empty_table())
    empty = OnlineResults(meta=info, summaries=[], skipped=list(skipped))
    groups = regroup(empty, requests.to_pandas(), CHUNKS.empty_table().to_pandas())
    results = recompute(empty, groups, SERVER.empty_table().to_pandas())
    results.results = [BatchRow.of(cell) for cell in results.summaries if cell.repeat is not None]
    (folder / "skipped.json").write_text(TypeAdapter(list[Skipped]).dump_json(list(skipped)).decode())
    (folder / "run.json").write_text(info.model_dump_json())
    (folder / "offline_results.json").write_text(results.model_dump_json(indent=1))
    return folder
