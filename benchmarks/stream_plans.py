"""Products of few rows of a Llama's layer for every way to deal them, in bfloat16 on this GPU; Markdown.

    python -m benchmarks.stream_plans random:qwen3-32b --ranks 2 --rows 1 8

Those of one of `--ranks` GPUs that share the layer. µs a call in a captured graph of many, with the weights
of several layers, so that none stays in the cache; TB/s of the weights; cuBLAS beside it, without the norm,
residual and gates that `stream` includes. See `roseinfer.kernels.cuda.stream`.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from functools import partial

from torch import Tensor
from torch.nn import functional as F

from benchmarks.llama_parts import DEVICE, LAYERS, captured, drawn
from roseinfer.kernels.cuda import stream
from roseinfer.kernels.cuda.stream import Plan
from roseinfer.kernels.triton.launch import multiprocessors
from rosemodels import llama

#: Shared memory of a block, less a little for the sums of its warps.
ROOMS = (104 << 10, 152 << 10, 200 << 10)


def plans(inputs: int, outputs: int, gated: bool, rows: int) -> Iterator[Plan]:
    """Every way that the kernel takes."""
    held = inputs <= stream._HELD_INPUTS
    for tiles, warps in itertools.product((1, 2, 4), (4, 8)):
        if (gated and tiles == 1) or outputs % (8 * tiles // (1 + gated)):
            continue
        for chunk in range(32 * warps, 1281, 32 * warps):
            if inputs % chunk or chunk < 512:
                continue
            row_bytes = 8 * tiles * (2 * chunk + 64)
            depths = {min(16, (room - held * rows * inputs * 2) // row_bytes) for room in ROOMS}
            yield from (Plan(tiles, warps, chunk, depth, held) for depth in sorted(depths) if depth >= 2)


def timed(weights: list[Tensor], inputs: int, gated: bool, normed: bool, rows: int) -> str:
    """The cells of a row: as chosen, the fastest ways, cuBLAS."""
    x, gain = drawn(rows, inputs), drawn(inputs)
    outputs = len(weights[0]) // (1 + gated)
    turn = itertools.cycle(weights)
    norm = (gain, 1e-6) if normed and inputs <= stream._HELD_INPUTS else None
    residual = None if normed else drawn(rows, outputs)

    def product(how: Plan | None) -> Tensor:
        return stream.product(x, next(turn), norm=norm, residual=residual, gated=gated, how=how)

    chosen = stream.plan(inputs, outputs, gated, multiprocessors(DEVICE), 1 << (rows - 1).bit_length())
    own = captured(partial(product, None))
    every = {how: captured(partial(product, how)) for how in plans(inputs, outputs, gated, rows)}
    best = sorted(every.items(), key=lambda entry: entry[1])[:3]
    cublas = captured(lambda: F.linear(x, next(turn)))
    rate = 2e-6 * weights[0].numel() / own
    ways = "; ".join(f"{t:.1f}: {p.tiles}, {p.warps}, {p.chunk}, {p.depth}" for p, t in best)
    as_chosen = "–" if chosen is None else f"{chosen.tiles}, {chosen.warps}, {chosen.chunk}, {chosen.depth}"
    return f"{own:.1f} | {rate:.2f} | {as_chosen} | {ways} | {cublas:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    given = parser.parse_args()
    shape = llama.SHAPES[given.model.removeprefix("random:")]
    ranks = given.ranks
    heads, kv, ffn = shape.heads // ranks, max(1, shape.kv_heads // ranks), shape.ffn_width // ranks
    products = {  # rows of the weight, inputs, gated, normed
        "qkv": ((heads + 2 * kv) * shape.head_dim, shape.width, False, True),
        "out": (shape.width, heads * shape.head_dim, False, False),
        "gate and up": (2 * ffn, shape.width, True, True),
        "down": (shape.width, ffn, False, False),
    }
    print("| rows | product | µs | TB/s | tiles, warps, chunk, depth | fastest, µs | cuBLAS, µs |")
    print("|---:|---|---:|---:|---|---|---:|")
    for name, (outputs, inputs, gated, normed) in products.items():
        weights = [drawn(outputs, inputs) for _ in range(LAYERS)]
        for rows in given.rows:
            print(f"| {rows} | {name} | {timed(weights, inputs, gated, normed, rows)} |", flush=True)


if __name__ == "__main__":
    main()
