"""A closed loop on an engine in this process, by what it prefers, without a server or weights on disk.

    python -m benchmarks.llama loop random:qwen3-8b 1 8 64 --input-len 1024 --output-len 128 \\
        --how prefer=balanced --how prefer=latency --how mixed_steps=false

For each number of requests in flight, `--rounds` times as many requests are served: each that ends is
replaced at once. The whole run counts, its start included, when all requests wait for their first token.
`--how` changes how steps are composed, as settings of the engine do; without it they are as by default.
Weights and `--option` as in `steps`. Last comes what the engine learned of its steps' costs; `error` is that
of what it expected.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, replace

import numpy as np
import torch

from benchmarks.llama.steps import engine_of, settings_of
from roseinfer.bench.replay import WallClock, replay, uniform
from roseinfer.config import EngineConfig
from roseinfer.engine.core import Engine
from roseinfer.engine.resolve import LARGE, resolve_composition
from roseinfer.scheduler.weighed import Weighed


def compose(engine: Engine, how: str) -> None:
    """Compose the steps of a large model from now on as with the settings `how`, NAME=VALUE,…"""
    scheduler, device = engine._scheduler, torch.device(engine.info.config.device)
    config, policies = EngineConfig(**settings_of(how.split(",") if how else [])), scheduler._policies
    weights = LARGE + 1 if isinstance(policies.composition, Weighed) else 0
    composition = resolve_composition(config, device, weights, policies.costs)
    scheduler._policies = replace(policies, composition=composition)


def serve(engine: Engine, in_flight: int, total: int, input_len: int, output_len: int) -> str:
    """Serve `total` requests. Returns the cells of a row: percentiles in ms, tokens/s, CPU ms a token."""
    cpu, arrivals = time.process_time(), uniform(total, None, input_len, output_len, seed=0)
    done = replay(engine, arrivals, WallClock(), in_flight)
    cpu, tokens = time.process_time() - cpu, total * output_len
    percentiles = (np.percentile(each * 1e3, (50, 90, 99)) for each in done.spreads().values())
    cells = [" / ".join(f"{x:.4g}" for x in each) for each in percentiles]
    return " | ".join([*cells, f"{tokens / done.duration:,.0f}", f"{cpu / tokens * 1e3:.3f}"])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measurement."""
    parser.add_argument("in_flight", type=int, nargs="+")
    parser.add_argument("--input-len", type=int, default=1024)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--how", action="append", metavar="NAME=VALUE,…")
    parser.add_argument("--plain", action="store_true")


def main(arguments: argparse.Namespace) -> None:
    """Print a row for each number of requests in flight and each way to compose steps."""
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
    print(
        "| in flight | how | TTFT p50 / p90 / p99, ms | TPOT | ITL | E2E | tok/s | CPU ms a token | error |"
    )
    print("|---|---|---|---|---|---|---:|---:|---:|")
    for count in arguments.in_flight:
        for how in arguments.how or [""]:
            compose(engine, how)
            row = serve(engine, count, count * arguments.rounds, *lengths)
            print(f"| {count} | {how} | {row} | {engine.step_costs.error:.1%} |", flush=True)
    if (cost := engine.step_costs.cost) is not None:
        print("\nlearned, us: " + ", ".join(f"{name} {x * 1e6:.4g}" for name, x in asdict(cost).items()))
    engine.close()
