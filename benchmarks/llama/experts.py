"""Mixtures of experts of a Llama on this GPU: correctness and speed of each kernel at a model's own shape.

    python -m benchmarks.llama experts random:qwen3-30b-a3b --rows 1 8 64 4096 [--fp8]

`check`: how far the kernels' results are from float32. `blocks`: the whole mixture of a layer, from the
residual stream to it, as the engine runs it. `plans`: the kernel for few rows with every ring buffer.
`tiles`: the GEMMs for more rows in several tilings. TB/s are those of the weights of the experts that are
chosen, and `copy` is their share of the copy bandwidth of this GPU. Times are µs of a layer in a captured
graph of several layers.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from benchmarks.llama.parts import DEVICE, captured, drawn
from benchmarks.llama.steps import copy_rate
from benchmarks.models import llama_shape
from roseinfer.kernels.cuda.experts import Plan
from roseinfer.kernels.cuda.experts import plans as plans_for
from roseinfer.kernels.cuda.stream import MAX_ROWS, bucket
from roseinfer.kernels.triton.experts import GroupTile, Routed, product, route
from roseinfer.models.config import Mixture
from roseinfer.models.linear import Linear
from roseinfer.models.mlp import Experts, Mlp, Router
from roseinfer.models.mlp_cuda import CudaExperts
from roseinfer.models.ops import Ops
from rosemodels import llama

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096)
#: Layers whose weights are used in turn.
LAYERS = 6
EPS = 1e-6
#: Tilings by rows of a program: outputs, inputs, stages and warps.
TILES = {
    16: list(itertools.product((32, 64), (64, 128, 256), (3, 5), (4,))),
    32: list(itertools.product((32, 64), (128,), (3, 4), (4,))),
    64: list(itertools.product((64, 128), (64,), (3, 4), (4, 8))),
    128: list(itertools.product((64, 128), (64,), (3, 4), (4, 8))),
}


class Layers:
    """The mixtures of several layers, with random weights."""

    def __init__(self, shape: llama.Shape, *, eight: bool) -> None:
        self.shape = shape
        every = frozenset(range(shape.layers))
        self.mixture = Mixture(shape.experts, shape.top_k, shape.ffn_width, True, every)
        std = 1.6 / shape.width**0.5
        self.gain = 1 + 0.1 * drawn(shape.width)
        self.each = []
        for _ in range(LAYERS):
            router = Router(Linear(drawn(shape.experts, shape.width) * std, None), self.mixture)
            gate_up, down = (2 * shape.ffn_width, shape.width), (shape.width, shape.ffn_width)
            parts = ((drawn(*gate_up) * std, drawn(*down) * std) for _ in range(shape.experts))
            self.each.append(CudaExperts(router, self.mixture, parts, eight=eight))

    def turns(self) -> Iterator[CudaExperts]:
        return itertools.cycle(self.each)

    def chosen(self, rows: int, x: Tensor) -> float:
        """Mean number of experts that `x` chooses."""
        normed = Ops().rms_norm(x, self.gain, EPS)
        return sum(len(torch.unique(each.router(normed)[1])) for each in self.each) / len(self.each)

    def bytes_of(self, experts: float) -> float:
        size = self.each[0].down.element_size()
        return experts * 3 * self.shape.ffn_width * self.shape.width * size


def check(layers: Layers, all_rows: Sequence[int]) -> Iterator[str]:
    yield "| rows | kernel | relative error: median | 99 % | worst row | same experts |"
    yield "|---:|---|---:|---:|---:|---:|"
    mixture = layers.each[0]
    stacks = [mixture.gate_up.float(), mixture.down.float()]
    for stack, scales in zip(stacks, mixture.scales or (), strict=False):
        stack *= scales[:, :, None]
    wide = Experts(
        Router(Linear(mixture.router.linear.weight.float(), None), layers.mixture),
        (Mlp(Linear(a, None), Linear(b, None), Ops()) for a, b in zip(*stacks, strict=True)),
    )
    for rows in all_rows:
        x = drawn(rows, layers.shape.width) * 0.05  # so that its rounding does not hide that of the mixture
        normed = Ops().rms_norm(x.float(), layers.gain.float(), EPS)
        expected = wide(normed)
        kernels: dict[str, Callable[[], Tensor]] = {"grouped": partial(_grouped, mixture, x, layers.gain)}
        if mixture.streams(x):
            kernels["stream"] = partial(mixture.stream, x, layers.gain, EPS)
        for name, run in kernels.items():
            before = mixture.tokens.clone()
            made = run().float() - x.float()
            counted = mixture.tokens - before
            apart = ((made - expected).norm(dim=1) / expected.norm(dim=1)).nan_to_num(9.0)
            counts = torch.bincount(wide.router(normed)[1].flatten(), minlength=len(counted))
            same = 1 - float((counted - counts).abs().sum()) / (2 * float(counts.sum()))
            yield (
                f"| {rows} | {name} | {float(apart.median()):.1e} | {float(apart.quantile(0.99)):.1e} "
                f"| {float(apart.max()):.1e} | {100 * same:.2f} % of {int(counted.sum())} |"
            )
            again = run().float() - x.float()
            if not torch.equal(made, again):
                differ = int((made != again).sum())
                yield f"| {rows} | {name} | differs from itself in {differ} numbers | | | |"


def _grouped(mixture: CudaExperts, x: Tensor, gain: Tensor) -> Tensor:
    out = x.clone()
    mixture.add_norm_(out, Ops().rms_norm(x, gain, EPS), gain, EPS)
    return out


def _speed(layers: Layers, rows: int, experts: float, run: Callable[[], object], copies: float) -> str:
    try:
        taken = captured(run, 2 * LAYERS)
    except Exception as error:  # a tiling that does not fit must not end the table
        return f"{type(error).__name__}: {str(error).splitlines()[0][:90]} | | |"
    rate = 1e6 * layers.bytes_of(experts) / taken
    flops = 6e-6 * rows * layers.shape.top_k * layers.shape.ffn_width * layers.shape.width / taken
    return f"{taken:.1f} | {rate / 1e12:.2f} | {rate / copies:.2f} | {flops:.0f} |"


def _next_norm(turns: Iterator[CudaExperts], x: Tensor, normed: Tensor, gain: Tensor) -> None:
    next(turns).add_norm_(x, normed, gain, EPS)


def _next_stream(turns: Iterator[CudaExperts], x: Tensor, gain: Tensor, plan: Plan | None = None) -> None:
    next(turns).stream(x, gain, EPS, plan=plan)


def _next_product(
    turns: Iterator[CudaExperts], x: Tensor, routed: Routed, tile: GroupTile, *, gated: bool
) -> None:
    mixture = next(turns)
    scales = mixture.scales and mixture.scales[not gated]
    product(x, mixture.gate_up if gated else mixture.down, routed, tile, gated=gated, scales=scales)


def blocks(layers: Layers, all_rows: Sequence[int], copies: float) -> Iterator[str]:
    yield "| rows | experts | kernel | µs | TB/s | copy | TFLOP/s |"
    yield "|---:|---:|---|---:|---:|---:|---:|"
    for rows in all_rows:
        x = drawn(rows, layers.shape.width)
        experts, turns = layers.chosen(rows, x), layers.turns()
        normed = Ops().rms_norm(x, layers.gain, EPS)
        kernels = {"grouped": partial(_next_norm, turns, x, normed, layers.gain)}
        if layers.each[0].streams(x):
            kernels["stream"] = partial(_next_stream, turns, x, layers.gain)
        for name, run in kernels.items():
            yield f"| {rows} | {experts:.1f} | {name} | {_speed(layers, rows, experts, run, copies)}"


def plans(layers: Layers, all_rows: Sequence[int], copies: float) -> Iterator[str]:
    yield "| rows | experts | plan: chunk, of down, depth | µs | TB/s | copy | TFLOP/s |"
    yield "|---:|---:|---|---:|---:|---:|---:|"
    shape, size = layers.shape, layers.each[0].down.element_size()
    for rows in (rows for rows in all_rows if rows <= MAX_ROWS):
        x = drawn(rows, shape.width)
        experts, turns = layers.chosen(rows, x), layers.turns()
        for plan in plans_for(shape.width, shape.ffn_width, shape.experts, bucket(rows), size):
            run = partial(_next_stream, turns, x, layers.gain, plan)
            what = f"{plan.chunk}, {plan.down_chunk}, {plan.depth}"
            yield f"| {rows} | {experts:.1f} | {what} | {_speed(layers, rows, experts, run, copies)}"


def tiles(layers: Layers, all_rows: Sequence[int]) -> Iterator[str]:
    yield "| rows | of a program | GEMM | fastest, µs: outputs, inputs, stages, warps |"
    yield "|---:|---:|---|---|"
    shape, mixture = layers.shape, layers.each[0]
    for rows in (rows for rows in all_rows if rows > MAX_ROWS):
        mean, turns = rows * shape.top_k / shape.experts, layers.turns()
        x, inner = drawn(rows, shape.width), drawn(rows * shape.top_k, shape.ffn_width)
        logits = mixture._logits(x)
        choose = partial(route, logits, mixture.tokens, shape.top_k, normalized=True)
        for height, all_tiles in TILES.items():
            if not height / 8 <= max(mean, 2) <= 4 * height:
                continue
            routed = choose(height)
            for gated in (True, False):
                times = {}
                for how in all_tiles:
                    run = partial(_next_product, turns, x if gated else inner, routed, GroupTile(*how))
                    try:
                        times[captured(partial(run, gated=gated), 2 * LAYERS)] = str(how)[1:-1]
                    except Exception as error:  # as in `_speed`
                        print("failed", height, how, str(error).splitlines()[0][:90])
                best = "; ".join(f"{t:.1f}: {times[t]}" for t in sorted(times)[:4])
                yield f"| {rows} | {height} | {'gate and up' if gated else 'down'} | {best} |"
        yield f"| {rows} | | logits | {captured(partial(mixture._logits, x)):.1f} |"
        yield f"| {rows} | | choice | {captured(partial(choose, 16)):.1f} |"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measurement."""
    parser.add_argument("--only", default="check,blocks,plans,tiles")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--fp8", action="store_true", help="round the experts to E4M3")


@torch.inference_mode()
def main(arguments: argparse.Namespace) -> None:
    """Print the table of each part."""
    torch.manual_seed(0)
    layers, copies = Layers(llama_shape(arguments.model), eight=arguments.fp8), copy_rate()
    print(f"{torch.cuda.get_device_name(DEVICE)}, copy {copies / 1e12:.2f} TB/s")
    parts: dict[str, Callable[[], Iterator[str]]] = {
        "check": partial(check, layers, arguments.rows),
        "blocks": partial(blocks, layers, arguments.rows, copies),
        "plans": partial(plans, layers, arguments.rows, copies),
        "tiles": partial(tiles, layers, arguments.rows),
    }
    for part in arguments.only.split(","):
        print(f"\n{part} of {arguments.model}\n")
        for line in parts[part]():
            print(line, flush=True)
