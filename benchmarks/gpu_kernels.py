"""GPU kernels compared with their lower bound and with PyTorch's operators, in one run; Markdown.

    python -m benchmarks.gpu_kernels

GPT-2 124M in fp16. A time is a call's share of a captured graph of many calls, each with the weights or cache
of another layer, together more than the L2 cache holds. Kernels that start while the previous one ends gain
by that, as they do in a step. `floor` (roofline): the time to move the bytes that must be read and written,
at the bandwidth of a sum over memory, or, where that is longer, to compute the FLOPs at the rate of a large
GEMM, both measured in this run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.kernel_table import HEAD, Timed
from roseinfer.attention.prefill import Spans, flash
from roseinfer.kernels.cuda import few_rows
from roseinfer.kernels.triton import head, norm, paged_decode, products, store_kv
from roseinfer.kernels.triton.prefill import prefill
from roseinfer.kernels.triton.products import Tile
from roseinfer.models.gpt2_cuda import tile_of

DEVICE, HALF = torch.device("cuda"), torch.float16
WIDTH, HEADS, DIM, INNER, VOCAB, LAYERS, BLOCK = 768, 12, 64, 3072, 50257, 12, 16
SIZES = {"qkv": (3 * WIDTH, WIDTH), "out": (WIDTH, WIDTH), "up": (INNER, WIDTH), "down": (WIDTH, INNER)}


@dataclass(frozen=True)
class Case:
    """A kernel with the tensors of layer `i`, and PyTorch's equivalent, if any. `moved`: bytes of a call."""

    name: str
    kernel: Callable[[int], object]
    reference: Callable[[int], object] | None
    moved: int
    flops: int


def seconds(call: Callable[[int], object]) -> float:
    """Seconds of one call, the median of 40 replays."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call(0)
    torch.cuda.current_stream().wait_stream(stream)
    graph, count = torch.cuda.CUDAGraph(), 4 * LAYERS
    times: list[float] = []
    with torch.cuda.graph(graph):
        for i in range(count):
            call(i % LAYERS)
    for _ in range(43):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(times[3:]) / count


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, device=DEVICE, dtype=HALF)


class Model:
    """Weights of all layers, and a KV cache for 256 requests of 288 tokens, in blocks in random order."""

    def __init__(self) -> None:
        self.weights = [{n: draw(*size) / 30 for n, size in SIZES.items()} for _ in range(LAYERS)]
        self.bias = {name: draw(size[0]) for name, size in SIZES.items()}
        self.gain, self.shift = draw(WIDTH), draw(WIDTH)
        self.head = draw(VOCAB, WIDTH)
        blocks = 256 * 19
        slots = (blocks * BLOCK, HEADS, DIM)
        self.cache = [(draw(*slots), draw(*slots)) for _ in range(LAYERS)]
        self.table = torch.randperm(blocks, device=DEVICE).int().view(256, 19)

    def requests(self, count: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
        rows = torch.arange(count, device=DEVICE, dtype=torch.int32)
        return self.table, rows, torch.full_like(rows, length)


def product_cases(model: Model, rows: int) -> Iterator[Case]:
    for name, (outputs, inputs) in SIZES.items():
        x = draw(rows, inputs)
        tile = tile_of(name, x, model.weights[0][name])
        if tile is not None:
            moved = 2 * (outputs * inputs + rows * inputs + rows * outputs)
            yield product_case(model, name, x, tile, moved)


def product_case(model: Model, name: str, x: Tensor, tile: Tile, moved: int) -> Case:
    """A GEMM with one of a layer's weights: whole with bias, or split along K for the next kernel to sum."""
    bias, whole, gelu = model.bias[name], name in ("qkv", "up"), name == "up"
    weights = [layer[name] for layer in model.weights]

    def kernel(i: int) -> object:
        if whole:
            return products.product(x, weights[i], bias, tile, gelu=gelu)
        return products.product_in_parts(x, weights[i], tile)

    def reference(i: int) -> object:
        if gelu:
            return torch._addmm_activation(bias, x, weights[i].t(), use_gelu=True)
        return F.linear(x, weights[i], bias) if whole else x @ weights[i].t()

    return Case(f"{name}, {len(x)} rows", kernel, reference, moved, 2 * len(x) * weights[0].numel())


def layer_cases(model: Model, rows: int) -> Iterator[Case]:
    shape = few_rows.Shape(WIDTH, HEADS, INNER, 1e-5, HALF, BLOCK)
    x, step = draw(rows, WIDTH), model.requests(rows, 288)
    pairs = [{n: (w[n], model.bias[n]) for n in SIZES} for w in model.weights]
    norms = model.gain, model.shift
    cached = 4 * rows * 288 * WIDTH
    yield Case(
        f"attention half of a layer, {rows} decode rows",
        lambda i: few_rows.attention(
            shape, few_rows.Stream(x), *norms, pairs[i]["qkv"], pairs[i]["out"], model.cache[i], *step
        ),
        None, 2 * 4 * WIDTH**2 + cached, 2 * rows * 4 * WIDTH**2,
    )  # fmt: skip
    yield Case(
        f"MLP half of a layer, {rows} decode rows",
        lambda i: few_rows.mlp(shape, few_rows.Stream(x), *norms, pairs[i]["up"], pairs[i]["down"]),
        None, 2 * 2 * WIDTH * INNER, 2 * rows * 2 * WIDTH * INNER,
    )  # fmt: skip


def decode_case(model: Model, rows: int) -> Case:
    q, k, v = draw(rows, 3, HEADS, DIM).unbind(1)
    table, requests, lengths = model.requests(rows, 288)
    moved = 4 * rows * 288 * WIDTH
    return Case(
        f"decode attention, {rows} x 288",
        lambda i: paged_decode.paged_decode(q, k, v, *model.cache[i], table, requests, lengths, BLOCK),
        None, moved, moved,
    )  # fmt: skip


def norm_case(model: Model, rows: int) -> Case:
    x, parts = draw(rows, WIDTH), torch.randn(4, rows, WIDTH, device=DEVICE)
    return Case(
        f"sum and norm, {rows} rows of 4 parts",
        lambda i: norm.add_norm_(x, parts, model.shift, model.gain, model.shift, 1e-5),
        lambda i: F.layer_norm(x.add_(parts.sum(0) + model.shift), (WIDTH,), model.gain, model.shift),
        rows * WIDTH * (16 + 6), 0,
    )  # fmt: skip


def head_case(model: Model) -> Case:
    x, size = draw(1, WIDTH), VOCAB * WIDTH
    return Case(
        "LM head, 1 row",
        lambda i: head.head(x, model.head), lambda i: x @ model.head.t(), 2 * size, 2 * size,
    )  # fmt: skip


def prompt_cases(model: Model, prompts: int, length: int) -> Iterator[Case]:
    count = prompts * length
    q, k, v = draw(count, 3, HEADS, DIM).unbind(1)
    starts = torch.tensor([0, *accumulate([length] * prompts)], device=DEVICE, dtype=torch.int32)
    spans = Spans(starts, starts, length, length)
    yield Case(
        f"prefill attention, {prompts} x {length}",
        lambda i: prefill(q, k, v, starts, starts), lambda i: flash(q, k, v, spans),
        8 * count * WIDTH, 2 * prompts * length * length * WIDTH,
    )  # fmt: skip
    slots = torch.arange(count, device=DEVICE, dtype=torch.int32)
    yield Case(
        f"keys and values to the cache, {count} tokens",
        lambda i: store_kv.store_kv(k, v, *model.cache[i], slots),
        None, 8 * count * WIDTH, 0,
    )  # fmt: skip


def all_cases(model: Model) -> Iterator[Case]:
    for rows in (1, 8):
        yield from layer_cases(model, rows)
    for rows in (16, 64, 128, 256):
        yield from product_cases(model, rows)
    for rows in (16, 64, 256):
        yield decode_case(model, rows)
        yield norm_case(model, rows)
    yield head_case(model)
    for prompts, length in ((1, 128), (1, 256), (1, 900), (16, 256)):
        yield from prompt_cases(model, prompts, length)


@torch.inference_mode()
def main() -> None:
    model = Model()
    memory = torch.ones(1 << 30, device=DEVICE)
    speed = memory.nbytes / seconds(lambda i: memory.sum())
    square = draw(2, 8192, 8192)
    peak = 2 * 8192**3 / seconds(lambda i: square[0] @ square[1])
    name = torch.cuda.get_device_name()
    print(f"{name}; reading {speed / 1e12:.2f} TB/s, GEMM {peak / 1e12:.0f} TFLOP/s\n\n{HEAD}")
    for case in all_cases(model):
        reference_s = seconds(case.reference) if case.reference else None
        timed = Timed(case.name, case.moved, case.flops, seconds(case.kernel), reference_s)
        print(timed.row(speed, peak), flush=True)


if __name__ == "__main__":
    main()
