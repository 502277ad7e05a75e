"""Soak test of a Llama's engine on this GPU: nothing leaks; Markdown.

    python -m benchmarks.llama_soak random:qwen3-0.6b --seconds 60

Requests of 1 to `--longest` tokens come in bursts, with answers of 1 to 200. Some are sampled with a
temperature, the others greedy; some are aborted at any stage. Memory of the process and of the GPU is shown
at every tenth of the time; at the end every block must be free.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import psutil
import torch

from benchmarks.llama_steps import engine_of
from benchmarks.models import llama_name
from roseinfer.request.params import SamplingParams


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=llama_name)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--longest", type=int, default=3000)
    parser.add_argument("--in-flight", type=int, default=256)
    given = parser.parse_args()
    engine = engine_of(
        given.model, plain=False, max_model_len=given.longest + 200, max_active_requests=given.in_flight
    )
    rng, process = np.random.default_rng(0), psutil.Process()
    begin = time.monotonic()
    shown = added = aborted = tokens = 0
    alive: set[int] = set()
    print("| s | requests | aborted | tokens | RSS, MiB | GPU, MiB | blocks in use |\n|" + "---:|" * 7)
    while engine.has_work or time.monotonic() - begin < given.seconds:
        passed = time.monotonic() - begin
        if passed < given.seconds and len(alive) < given.in_flight and rng.random() < 0.3:
            for _ in range(int(rng.integers(1, 40))):
                length = int(given.longest ** rng.random())
                params = SamplingParams(
                    int(rng.integers(1, 201)), ignore_eos=True, temperature=0.9 * (added % 5 == 0),
                    top_p=0.9, seed=added,
                )  # fmt: skip
                engine.add(added, rng.integers(0, 50_000, length, dtype=np.int32), params)
                alive.add(added)
                added += 1
        if alive and rng.random() < 0.1:
            engine.discard(leaves := int(rng.choice(sorted(alive))))
            alive.remove(leaves)
            aborted += 1
        result = engine.step()
        if result is not None:
            tokens += len(result.tokens)
            alive.difference_update(finished.id for finished in result.finished)
        if passed >= shown * given.seconds / 10:
            shown += 1
            memory = process.memory_info().rss >> 20, torch.cuda.memory_reserved() >> 20
            print(
                f"| {passed:.0f} | {added} | {aborted} | {tokens:,} | {memory[0]:,} | {memory[1]:,} | "
                f"{engine.kv_usage:.1%} |",
                flush=True,
            )
    engine.check_idle()
    print("every block is free")


if __name__ == "__main__":
    main()
