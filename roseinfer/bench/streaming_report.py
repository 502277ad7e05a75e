"""The report of `bench-streaming`: settings, and times as p50/p95/p99 in ms."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from roseinfer.bench.streaming import Run, StreamingLoad
from roseinfer.config import ConfigError
from roseinfer.info import EngineInfo

Value = str | int | float | dict[str, float | None]


def figures(info: EngineInfo, load: StreamingLoad, runs: Sequence[Run]) -> dict[str, Value]:
    """Names and values, in the order in which they are shown, over the requests of all `runs`."""
    requests = [request for run in runs for request in run.requests]
    answered = [request for request in requests if request.shown]
    wall = sum(run.wall for run in runs)
    prompt, completion = sum(run.prompt_tokens for run in runs), sum(run.completion_tokens for run in runs)
    gaps = [np.diff(request.shown) for request in answered if len(request.shown) > 1]
    return {
        "Model": info.config.model,
        "Device": f"{info.config.device} {info.model.dtype}",
        "Pretok": _on(load.pretok),
        "Tokenize workers": load.tokenize_workers,
        "Stream interval": load.stream_interval,
        "Paged attention": info.runner.attention,
        "CUDA Graph": _on(bool(info.runner.cuda_graph)),
        "NVTX": _on(os.environ.get("ROSEINFER_NVTX") == "1"),
        "Requests": len(requests),
        "Prompt tokens (total)": prompt,
        "Completion tokens (total)": completion,
        "Submit wall": f"{sum(run.submit_wall for run in runs):.3f} s",
        "Submit interval/schedule": f"{load.submit_interval_ms:g} ms {load.submit_schedule}",
        "Submit lag": _times([request.received - request.due for request in requests]),
        "add_request latency": _times([request.add for request in requests]),
        "Tokenize": _times([request.tokenize for request in requests]),
        "Queue wait (post-tok)": _times([request.queue_wait for request in answered]),
        "Prefill->first token": _times([request.prefill for request in answered]),
        "TTFT": _times([request.shown[0] - request.received for request in answered]),
        "TPOT": _times([gap.mean().item() for gap in gaps]),
        "ITL": _times(np.concatenate(gaps).tolist() if gaps else []),
        "Latency": _times([request.shown[-1] - request.received for request in answered]),
        "Throughput (completion,total)": {
            "completion": completion / wall,
            "total": (prompt + completion) / wall,
        },
    }


def lines(values: dict[str, Value]) -> list[str]:
    """One line for each figure."""
    return [f"{name}: {_show(value)}" for name, value in values.items()]


def write(path: Path, shown: dict[str, dict[str, Value]]) -> None:
    """Write the figures as JSON, atomically. Raises ConfigError when the file cannot be written."""
    partial = path.with_name(f".{path.name}.part")
    try:
        partial.write_text(json.dumps(shown, indent=2, allow_nan=False) + "\n")
        partial.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def _times(samples: Sequence[float]) -> dict[str, float | None]:
    """Percentiles (numpy's linear interpolation) in ms; None without samples."""
    if not samples:
        return dict.fromkeys(("p50", "p95", "p99"))
    return {f"p{p}": float(np.percentile(samples, p)) * 1e3 for p in (50, 95, 99)}


def _show(value: Value) -> str:
    if not isinstance(value, dict):
        return str(value)
    if "completion" in value:
        return ",".join(f"{number:.1f}" for number in value.values()) + " tokens/s"
    parts = ["-" if number is None else f"{number:.3f}" for number in value.values()]
    return "/".join(parts) + " ms (p50/p95/p99)"


def _on(value: bool) -> str:
    return "on" if value else "off"
