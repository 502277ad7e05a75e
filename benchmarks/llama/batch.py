"""Time of an offline batch by kind of step, on an engine in this process.

    python -m benchmarks.llama batch random:qwen3-0.6b --requests 256 --tokens 100 1024

All requests are there from the start; their prompts and their answers have lengths drawn evenly from
`--tokens`. Each of `--repeats` batches has lengths of its own, the same in every run. The first table has
each batch's speed, the second what kinds of steps the last one took: a step's time lasts from the end of the
one before until its tokens are there. `--kernels` serves one more batch under torch.profiler. Weights and
`--option` as in `steps`.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict

import numpy as np

from benchmarks.llama.kernels import table
from benchmarks.llama.steps import engine_of, run
from roseinfer.bench.cost import StepTimes, TimedRunner
from roseinfer.bench.replay import WallClock
from roseinfer.engine.core import Engine
from roseinfer.request.params import SamplingParams

#: Decode rows of a step, in the table of kinds.
ROWS = (0, 16, 64, 128, 192, 256)


def submit(engine: Engine, requests: int, between: tuple[int, int], seed: int) -> int:
    """Queue a batch. Returns its output tokens."""
    rng = np.random.default_rng(seed)
    inputs, outputs = rng.integers(between[0], between[1] + 1, (2, requests))
    for index, (input_len, output_len) in enumerate(zip(inputs.tolist(), outputs.tolist(), strict=True)):
        prompt = rng.integers(0, 50_000, input_len, dtype=np.int32)
        engine.add(index, prompt, SamplingParams(output_len, ignore_eos=True))
    return int(outputs.sum())


def kinds(times: StepTimes) -> list[str]:
    """A line for each kind of step: with or without prompts, and how many requests decode."""
    steps_of_kind = defaultdict[tuple[bool, int], list[tuple[float, ...]]](list)
    for (prompts, tokens, _, _, rows, context), seconds in zip(times.contents, times.seconds, strict=True):
        most = next((most for most in ROWS if rows <= most), int(rows))
        steps_of_kind[bool(prompts), most].append((tokens, rows, context, seconds))
    lines = [
        "| prompts | decode rows | steps | prompt tokens | tokens of context | ms | s in all |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for (prompts, most), steps in sorted(steps_of_kind.items()):
        tokens, _, context, taken = np.mean(steps, axis=0)
        lines.append(
            f"| {'yes' if prompts else 'no'} | ≤ {most} | {len(steps)} | {tokens:.0f} | {context:,.0f} "
            f"| {1e3 * taken:.3f} | {taken * len(steps):.3f} |"
        )
    return lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measurement."""
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--tokens", type=int, nargs=2, default=(100, 1024))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kernels", action="store_true")


def main(arguments: argparse.Namespace) -> None:
    """Print the speed of each batch, then the kinds of steps of the last one."""
    between = arguments.tokens[0], arguments.tokens[1]
    engine = engine_of(
        arguments.model,
        plain=False,
        max_model_len=2 * arguments.tokens[1],
        max_active_requests=arguments.requests,
        options=arguments.option,
    )
    submit(engine, arguments.requests, (16, 32), 0)
    run(engine)
    timed = TimedRunner(engine._loop.runner, WallClock())
    engine.watch(lambda _: timed)
    print("| batch | output tokens | s | tok/s |\n|---:|---:|---:|---:|")
    for seed in range(arguments.repeats):
        timed.times = StepTimes()
        begin = time.perf_counter()
        tokens = submit(engine, arguments.requests, between, seed)
        run(engine)
        taken = time.perf_counter() - begin
        print(f"| {seed + 1} | {tokens:,} | {taken:.3f} | {tokens / taken:,.0f} |", flush=True)
    print("", *kinds(timed.times), sep="\n", flush=True)
    if arguments.kernels:
        submit(engine, arguments.requests, between, 0)
        print(table("the first batch again", 1, lambda: run(engine)))
