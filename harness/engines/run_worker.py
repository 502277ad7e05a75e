"""Times one engine's in-process API, in that engine's own interpreter. Standard library only.

    python run_worker.py JOB.json RESULT.jsonl

JOB.json: {"target", "arguments", "prompts", "prompt_limits", "warmup", "warmup_limits", "ignore_eos",
"settle_s", "min_s"}. `target` is `module:callable` or `/path/to/file.py:callable`. Called with `arguments` it
returns an object with

    generate(prompts: list[list[int]], max_tokens: list[int], ignore_eos: bool) -> list[list[int]]

which returns the generated token ids of each prompt, in order, when all are done. `warmup` are prompts that
are generated first and not timed, and so is the batch for `settle_s` seconds. Then the batch is generated
until `min_s` seconds have passed, at least once. RESULT.jsonl gets one line for each event: {"event":
"ready", "seconds"} and {"event": "result", "seconds", "output_tokens": [int of each prompt of each batch],
"batches", "end": by the monotonic clock}. The exit code is 0 if both were written. The engine's output goes
to stdout and stderr."""

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
    with Path(result_path).open("w") as file:

        def write_event(event: str, seconds: float, **more: object) -> None:
            file.write(json.dumps({"event": event, "seconds": seconds, **more}) + "\n")
            file.flush()

        begin = time.perf_counter()
        engine = load(job["target"])(**job["arguments"])
        write_event("ready", time.perf_counter() - begin)
        if job["warmup"]:
            engine.generate(job["warmup"], job["warmup_limits"], job["ignore_eos"])
        begin = time.perf_counter()
        while time.perf_counter() - begin < job["settle_s"]:
            engine.generate(*batch)
        counts: list[int] = []
        seconds, batches = 0.0, 0
        while not batches or seconds < job["min_s"]:
            begin = time.perf_counter()
            outputs = engine.generate(*batch)
            seconds += time.perf_counter() - begin
            batches += 1
            counts += [len(output) for output in outputs]
        write_event("result", seconds, output_tokens=counts, batches=batches, end=time.monotonic())


if __name__ == "__main__":
    main(*sys.argv[1:])
