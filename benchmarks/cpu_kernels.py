"""CPU kernels compared with their lower bound and with what they replace, in one run; Markdown.

    python -m benchmarks.cpu_kernels [--threads 2] [--model random:gpt2]

Weights and KV caches have so many copies, used in turn, that they do not fit the processor's cache. Kernel
and reference alternate; a time is the median of its calls. `floor` (roofline): the time to read the bytes
that must be read at this machine's bandwidth, or, where that is longer, to compute the FLOPs at the highest
rate of this run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

import numpy as np
import torch
from torch import Tensor

from benchmarks.kernel_table import HEAD, Timed
from benchmarks.models import model_name
from roseinfer.attention.base import Attention
from roseinfer.attention.cpu_paged import CpuPagedAttention
from roseinfer.attention.torch_paged import TorchPagedAttention
from roseinfer.batch import Batch
from roseinfer.kvcache.pool import KVPool
from roseinfer.model_folder import model_folder
from roseinfer.models import config
from roseinfer.models.config import ModelConfig
from roseinfer.models.cpu import CpuLinear
from roseinfer.models.linear import OneDnnLinear

CPU, BF16 = torch.device("cpu"), torch.bfloat16
#: More than processors' caches hold.
COLD_BYTES = 256 << 20
BLOCK = 16


@dataclass(frozen=True)
class Case:
    """A kernel and its reference on the same input, the bytes that a call must read, and its FLOPs."""

    name: str
    kernel: Callable[[], object]
    reference: Callable[[], object]
    read: int
    flops: int


def copies(bytes_each: int) -> int:
    return -(-COLD_BYTES // bytes_each)


def products(shape: ModelConfig, rows: int) -> Iterator[Case]:
    """GEMMs with the weights of a layer, and with that of the LM head."""
    width, inner = shape.width, shape.ffn_width
    heads = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    for name, outputs, inputs in (
        ("QKV", heads, width),
        ("up", inner, width),
        ("down", width, inner),
        ("LM head", shape.vocab_size, width),
    ):
        weights = [torch.randn(outputs, inputs).to(BF16) for _ in range(copies(2 * outputs * inputs))]
        x = torch.randn(rows, inputs).to(BF16)
        yield Case(
            f"{name}: {rows} × {inputs} → {outputs}",
            each_in_turn([CpuLinear(weight, None) for weight in weights], x),
            each_in_turn([OneDnnLinear(weight, None) for weight in weights], x),
            2 * outputs * inputs,
            2 * rows * outputs * inputs,
        )


def each_in_turn(layers: Sequence[Callable[[Tensor], Tensor]], x: Tensor) -> Callable[[], object]:
    """Calls the next layer with `x`, round and round."""
    turn = cycle(layers)
    return lambda: next(turn)(x)


def attention(shape: ModelConfig, requests: int, length: int) -> Case:
    """Decode attention of `requests` requests of `length` tokens."""
    needed = -(-length // BLOCK)
    read = 2 * 2 * requests * length * shape.kv_heads * shape.head_dim
    layers = copies(read)
    pool = KVPool(replace(shape, layers=layers).kv_shape(BF16), requests * needed, BLOCK, CPU)
    tables = np.random.default_rng(0).permutation(requests * needed).reshape(requests, needed)
    last, order = tables[:, -1] * BLOCK + (length - 1) % BLOCK, np.arange(requests)
    batch = Batch(
        tokens=order, positions=order, cache_slots=last, segments=(),
        decode_lengths=np.full(requests, length), last_rows=order, requests=order, block_table=tables,
        block_size=BLOCK,
    )  # fmt: skip
    heads = (shape.heads, shape.kv_heads, shape.kv_heads)
    q, k, v = torch.randn(requests, sum(heads), shape.head_dim).to(BF16).split_with_sizes(heads, dim=1)

    def step(kind: Attention) -> Callable[[], object]:
        kind.begin(batch)
        turn = cycle(range(layers))
        return lambda: kind.attend(next(turn), q, k, v)

    kernel, reference = step(CpuPagedAttention(pool)), step(TorchPagedAttention(pool))
    flops = 4 * requests * length * shape.heads * shape.head_dim
    return Case(f"attention: {requests} × {length} tokens", kernel, reference, read, flops)


def turns(case: Case, seconds: float) -> Timed:
    """Medians of kernel and reference, called alternately for `seconds`."""
    times: tuple[list[float], list[float]] = ([], [])
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(times[0]) < 5:
        for seconds_of_call, call in zip(times, (case.kernel, case.reference), strict=True):
            begun = time.perf_counter()
            call()
            seconds_of_call.append(time.perf_counter() - begun)
    kernel_s, reference_s = map(statistics.median, times)
    return Timed(case.name, case.read, case.flops, kernel_s, reference_s)


def reading_speed() -> float:
    """Bytes/s of a sum over memory."""
    memory = torch.ones(COLD_BYTES // 4)
    times = []
    for _ in range(20):
        begun = time.perf_counter()
        memory.sum()
        times.append(time.perf_counter() - begun)
    return COLD_BYTES / min(times)


def table(timed: Sequence[Timed], speed: float) -> str:
    best = max(row.flops / min(row.kernel_s, row.reference_s or row.kernel_s) for row in timed)
    head = f"Reading: {speed / 1e9:.1f} GB/s. Best product: {best / 1e9:.0f} GFLOP/s.\n"
    return "\n".join([head, HEAD, *(row.row(speed, best) for row in timed)])


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=model_name, default="random:gpt2", help="whose matrices and heads")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=1.0, help="for each kernel")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    shape = config.read(model_folder(options.model))
    timed = [turns(case, options.seconds) for rows in (1, 8, 64, 512) for case in products(shape, rows)]
    timed += [turns(attention(shape, *size), options.seconds) for size in ((1, 160), (8, 160), (8, 900))]
    print(f"{options.model}, bf16, {options.threads} threads\n\n{table(timed, reading_speed())}")


if __name__ == "__main__":
    main()
