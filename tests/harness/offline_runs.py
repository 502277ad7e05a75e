"""Run folders of invented speeds, as `bench offline` leaves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.schema.results import OfflineResult, OfflineResults, Skipped
from harness.schema.run_info import OfflineRunInfo, Versions
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
    """The folder of a run.

    Args:
        rates: Output tokens a second of each repeat, by label.
        failed: Labels and repeats without a result.
        day: Of the month in which it was made.
    """
    folder.mkdir()
    given: dict[str, Any] = {"model": "random:gpt2", "device": "cpu", "dtype": "bf16", "warmup": PROMPTS}
    given |= {"num_prompts": PROMPTS, "input_len": INPUT, "output_len": OUTPUT, "max_model_len": 1024}
    given |= {"repeats": max(map(len, rates.values())), "cpu_threads": 1}
    info = OfflineRunInfo(
        created=f"2026-03-{day:02d}T12:00:00Z",
        command=["bench", "offline"],
        settings=OfflineSettings.model_validate(given | settings),
        environment=dict(environment or {"cpu": {"model": "a CPU", "usable_cores": 2}}),
        versions=Versions(git_rev=f"{day:040x}", rosebench="0", python="3.12"),
        order=[(label, repeat) for label, each in rates.items() for repeat in range(len(each))],
    )
    results = [
        batch_result(label, repeat, PROMPTS * OUTPUT / rate)
        for label, each in rates.items()
        for repeat, rate in enumerate(each)
        if (label, repeat) not in failed
    ]
    skipped = [
        Skipped(engine="roseinfer", label=label, repeat=repeat, reason="it died") for label, repeat in failed
    ]
    (folder / "run.json").write_text(info.model_dump_json())
    found = OfflineResults(meta=info, results=results, skipped=skipped)
    (folder / "offline_results.json").write_text(found.model_dump_json())
    return folder


def batch_result(
    label: str, repeat: int, seconds: float, prompts: int = PROMPTS, given: int = INPUT, made: int = OUTPUT
) -> OfflineResult:
    """Of a batch of prompts with so many tokens each, `given` and `made`."""
    return OfflineResult(
        engine=label.split()[0].lower(),
        variant="x" if "(x" in label else None,
        label=label,
        repeat=repeat,
        num_prompts=prompts,
        prompt_tokens=prompts * given,
        completion_tokens=prompts * made,
        total_s=seconds,
        req_per_s=prompts / seconds,
        output_tok_per_s=prompts * made / seconds,
        total_tok_per_s=prompts * (given + made) / seconds,
    )
