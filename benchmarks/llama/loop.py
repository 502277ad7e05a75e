"""A closed loop on an engine in this process: TTFT, TPOT and throughput, without a server or weights on disk.

    python -m benchmarks.llama loop random:qwen3-30b-a3b 1 8 64 --input-len 1024 --output-len 128

For each number of requests in flight, `--rounds` times as many requests are served: each that ends is
replaced at once. The whole run counts, its start included, when all requests wait for their first token.
Weights and `--option` as in `steps`.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from benchmarks.llama.steps import engine_of
from roseinfer.engine.core import Engine
from roseinfer.request.params import SamplingParams


def serve(engine: Engine, in_flight: int, total: int, input_len: int, output_len: int) -> str:
    """Serve `total` requests. Returns the row of a table."""
    rng = np.random.default_rng(0)
    submitted: list[float] = []
    first, last = np.zeros(total), np.zeros(total)

    def submit() -> None:
        if (index := len(submitted)) < total:
            prompt = rng.integers(0, 50_000, input_len, dtype=np.int32)
            submitted.append(time.perf_counter())
            engine.add(index, prompt, SamplingParams(output_len, ignore_eos=True))

    for _ in range(in_flight):
        submit()
    while engine.has_work:
        result = engine.step()
        now = time.perf_counter()
        if result is not None:
            first[result.ids[first[result.ids] == 0]] = now
            last[result.ids] = now
            for _ in result.finished:
                submit()
    ttft = (first - submitted) * 1e3
    tpot = (last - first) / (output_len - 1) * 1e3
    rate = total * output_len / (last.max() - submitted[0])
    spread = (f"{np.percentile(x, 50):.2f} / {np.percentile(x, 99):.2f}" for x in (ttft, tpot))
    return f"| {in_flight} | {' | '.join(spread)} | {rate:,.0f} |"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measurement."""
    parser.add_argument("in_flight", type=int, nargs="+")
    parser.add_argument("--input-len", type=int, default=1024)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--plain", action="store_true")


def main(arguments: argparse.Namespace) -> None:
    """Print a row for each number of requests in flight."""
    lengths, most = (arguments.input_len, arguments.output_len), max(arguments.in_flight)
    begun = time.perf_counter()
    engine = engine_of(
        arguments.model,
        plain=arguments.plain,
        max_model_len=sum(lengths),
        max_active_requests=most,
        options=arguments.option,
    )
    print(f"ready after {time.perf_counter() - begun:.0f} s\n")
    serve(engine, most, most, *lengths)
    print("| in flight | TTFT p50 / p99, ms | TPOT p50 / p99, ms | tok/s |\n|---|---|---|---:|")
    for count in arguments.in_flight:
        print(serve(engine, count, count * arguments.rounds, *lengths), flush=True)
    engine.close()
