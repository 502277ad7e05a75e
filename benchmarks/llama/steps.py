"""Steps of a Llama on this GPU and their lower bound, without a server or weights on disk.

    python -m benchmarks.llama steps random:qwen3-0.6b 1 8 64 --context 288 --prompts 256,1024

Decode steps of the given numbers of requests, each with `--context` tokens, and prefill steps of one prompt
of each of `--prompts` tokens, as the engine launches them. `floor` (roofline): the time to read the bytes of
weights and KV cache at this GPU's copy bandwidth, or, if longer, to compute the FLOPs at the rate of a large
GEMM, both measured in this run; of experts, those that rows choose at random. `--plain` turns the fused
kernels off; `--ranks` uses several GPUs, while the
floor is that of one. Weights are random, made on the device. `--option quantization=fp8` is a setting of
the engine, as `EngineConfig` names it.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import yaml

from benchmarks.models import llama_shape
from roseinfer.config import EngineConfig
from roseinfer.engine.core import Engine
from roseinfer.models import config as configs
from roseinfer.models.weights import DrawnWeights
from roseinfer.request.params import SamplingParams
from rosemodels import llama


def seconds(run: Callable[[], object]) -> float:
    """Between two events."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3


def median(run: Callable[[], object], repeats: int = 20) -> float:
    return statistics.median([seconds(run) for _ in range(repeats + 3)][3:])


def copy_rate() -> float:
    """Copy bandwidth: bytes a second, read and written."""
    x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    return 2 * len(x) / median(lambda: y.copy_(x))


def product_rate() -> float:
    """FLOP/s of a large GEMM in bfloat16."""
    a, b = torch.randn(2, 8192, 8192, device="cuda", dtype=torch.bfloat16)
    return 2 * 8192**3 / median(lambda: a @ b)


def settings_of(options: Sequence[str]) -> dict[str, Any]:
    """The settings that `--option` gives."""
    return {name: yaml.safe_load(value) for name, _, value in (option.partition("=") for option in options)}


def engine_of(
    name: str,
    *,
    plain: bool,
    max_model_len: int,
    max_active_requests: int,
    ranks: int = 1,
    options: Sequence[str] = (),
) -> Engine:
    """An engine of a named shape in bfloat16, with random weights, which several ranks read from the disk."""
    settings: dict[str, Any] = {
        "prefix_cache": False, "device": "cuda", "dtype": "bf16", "fused_ops": not plain, "warmup": False,
        "max_model_len": max_model_len, "max_active_requests": max_active_requests,
        "tensor_parallel_size": ranks,
    }  # fmt: skip
    shape = llama_shape(name)
    raw = llama.config(shape)
    parsed = configs.parse(raw)
    config = EngineConfig(name, **settings | settings_of(options))
    if ranks > 1:
        return Engine(config)
    with (
        patch("roseinfer.models.load.model_folder", Path),
        patch("roseinfer.models.config.read", lambda folder: parsed),
        patch(
            "roseinfer.models.load.weights_of",
            lambda folder, shape, device: DrawnWeights(shape.table, raw["random_weights"], device),
        ),
    ):
        return Engine(config)


def add(engine: Engine, count: int, length: int, tokens: int) -> None:
    rng, params = np.random.default_rng(0), SamplingParams(max_tokens=tokens, ignore_eos=True)
    for index in range(count):
        engine.add(index, rng.integers(0, 50_000, length, dtype=np.int32), params)


def run(engine: Engine) -> None:
    while engine.has_work:
        engine.step()


def decode_step(engine: Engine, count: int, context: int, steps: int = 30) -> float:
    """Seconds of a decode step of `count` requests, once the last of them has been prefilled."""
    add(engine, count, context, steps + 200)
    while engine.num_waiting or engine._loop._running.prefilling:
        engine.step()
    for _ in range(3):
        engine.step()
    taken = seconds(lambda: [engine.step() for _ in range(steps)]) / steps
    for index in range(count):
        engine.discard(index)
    run(engine)
    return taken


def in_expert(name: str) -> bool:
    """Return whether a tensor is of an expert, which few rows leave unread."""
    return ".experts." in name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measurement."""
    parser.add_argument("requests", type=int, nargs="*")
    parser.add_argument("--context", type=int, default=288)
    parser.add_argument("--prompts", default="")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--ranks", type=int, default=1)


def main(arguments: argparse.Namespace) -> None:
    """Print a row for each number of requests and each length of a prompt."""
    copies, products = copy_rate(), product_rate()
    print(f"copy {copies / 1e12:.2f} TB/s, GEMM {products / 1e12:.0f} TFLOP/s")
    most = max(arguments.requests, default=1)
    lengths = [int(length) for length in arguments.prompts.split(",") if length]
    longest = max([arguments.context + 256, *(length + 16 for length in lengths)])
    engine = engine_of(
        arguments.model,
        plain=arguments.plain,
        max_model_len=longest,
        max_active_requests=most,
        ranks=arguments.ranks,
        options=arguments.option,
    )
    shape = llama_shape(arguments.model)
    layers, experts = (
        sum(
            t.size
            for t in llama.tensors(shape)
            if t.std and ".layers." in t.name and in_expert(t.name) == of_expert
        )
        for of_expert in (False, True)
    )
    share = shape.top_k / shape.experts if shape.experts else 0.0  # of experts that compute a row
    head = shape.vocab_size * shape.width
    token = 4 * shape.layers * shape.kv_heads * shape.head_dim  # bytes of its keys and values
    print("| step | ms | floor | floor / step |\n|---|---:|---:|---:|")

    def row(what: str, taken: float, read: float, flops: float) -> None:
        floor = max(read / copies, flops / products)
        print(f"| {what} | {taken * 1e3:.3f} | {floor * 1e3:.3f} | {floor / taken:.2f} |", flush=True)

    for count in arguments.requests:
        taken = decode_step(engine, count, arguments.context)
        chosen = experts * (1 - (1 - share) ** count)
        read = 2 * (layers + chosen + head) + count * arguments.context * token
        flops = 2 * count * (layers + experts * share + head)
        row(f"{count} x {arguments.context}", taken, read, flops)
    for length in lengths:
        add(engine, 1, length, 1)
        run(engine)
        times = []
        for _ in range(8):
            add(engine, 1, length, 1)
            torch.cuda.synchronize()
            times.append(seconds(partial(run, engine)))
        attended = 2 * length * length * shape.heads * shape.head_dim * shape.layers
        read = 2 * (layers + experts * (1 - (1 - share) ** length))
        flops = 2 * length * (layers + experts * share) + attended
        row(f"prompt of {length}", statistics.median(times), read, flops)
