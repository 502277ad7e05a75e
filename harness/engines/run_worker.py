"""Times one engine's in-process API, in that engine's own interpreter. Standard library only.

    python run_worker.py JOB.json RESULT.json

JOB.json: {"target", "arguments", "prompts", "prompt_limits", "warmup", "warmup_limits", "ignore_eos",
"settle_s", "min_s"}. `target` is `module:callable` or `/path/to/file.py:callable`. Called with `arguments` it
returns an object with

    generate(prompts: list[list[int]], max_tokens: list[int], ignore_eos: bool) -> list[list[int]]

which returns the generated token ids of each prompt, in order, when all are done. It may have

    token_times() -> list[tuple[float, float]]

with the times of the first and the last token of each prompt of the latest call, by the monotonic clock.

`warmup` are prompts that are generated first and not timed, and so is the batch for `settle_s` seconds. Then
the batch is generated until `min_s` seconds have passed, at least once. RESULT.json, which is written last:
{"ready_s", "batches": [{"begin", "end", "output_tokens": [int of each prompt], "token_times"}]}, times by the
monotonic clock. The engine's output goes to stdout and stderr."""

import importlib
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any


def load(target: str) -> Any:
    """The callable that `target` names."""
    where, _, name = target.rpartition(":")
    if not where.endswith(".py"):
        return getattr(importlib.import_module(where), name)
    spec = importlib.util.spec_from_file_location(Path(where).stem, where)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def main(job_path: str, result_path: str) -> None:
    job = json.loads(Path(job_path).read_text())
    batch = (job["prompts"], job["prompt_limits"], job["ignore_eos"])
    begin = time.monotonic()
    engine = load(job["target"])(**job["arguments"])
    ready_s = time.monotonic() - begin
    if job["warmup"]:
        engine.generate(job["warmup"], job["warmup_limits"], job["ignore_eos"])
    begin = time.monotonic()
    while time.monotonic() - begin < job["settle_s"]:
        engine.generate(*batch)
    batches: list[dict[str, Any]] = []
    seconds = 0.0
    while not batches or seconds < job["min_s"]:
        begin = time.monotonic()
        outputs = engine.generate(*batch)
        end = time.monotonic()
        seconds += end - begin
        times = engine.token_times() if hasattr(engine, "token_times") else None
        counts = [len(output) for output in outputs]
        batches.append({"begin": begin, "end": end, "output_tokens": counts, "token_times": times})
    Path(result_path).write_text(json.dumps({"ready_s": ready_s, "batches": batches}))


if __name__ == "__main__":
    main(*sys.argv[1:])
