"""Skinny GEMMs of a Llama's layer with every tiling (`stream.Plan`), in bfloat16 on this GPU.

    python -m benchmarks.llama plans random:qwen3-32b --ranks 2 --rows 1 8 16 --size 2

The GEMMs are those of one of `--ranks` tensor-parallel GPUs. First each is measured alone: µs a call in a
captured graph of many calls, with the weights of several layers, so that none stays in the L2 cache; TB/s of
weights of `--size` bytes an element (bfloat16 or E4M3); and cuBLAS for bfloat16, without the norm, residual
and SwiGLU that `stream` fuses. Tilings that do not hold x have no norm either. Then the fastest tilings of
each replace that of `stream.plan` in whole layers of these GEMMs, one GEMM after the other, and the best is
kept: a kernel starts while the previous one ends, so the fastest alone need not be the fastest in a layer. A
mixture of experts has no place in them. See `roseinfer.kernels.cuda.stream`.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.llama.parts import DEVICE, LAYERS, captured, drawn
from benchmarks.models import llama_shape
from roseinfer.e4m3 import to_e4m3
from roseinfer.kernels.cuda import stream
from roseinfer.kernels.cuda.stream import Plan
from roseinfer.kernels.triton.launch import multiprocessors

#: Shared memory of a block that is tried, in bytes, with that for the sums of its warps.
SHARED_BYTES = (112 << 10, 160 << 10, 208 << 10, 226 << 10)
#: Of a kernel's arrays of fixed size, at most.
STATIC_BYTES = 47 << 10
#: How many tilings of a GEMM are tried in a layer.
TRIED = 6


@dataclass
class Product:
    """One of a layer's GEMMs: weight `[outputs, inputs]`, twice the outputs where `gated`."""

    name: str
    outputs: int
    inputs: int
    gated: bool
    normed: bool
    rows: int
    size: int

    @cached_property
    def weights(self) -> list[Tensor]:
        weights = [drawn((1 + self.gated) * self.outputs, self.inputs) for _ in range(LAYERS)]
        return weights if self.size == 2 else [to_e4m3(weight) for weight in weights]

    @cached_property
    def scales(self) -> Tensor | None:
        made = (1 + self.gated) * self.outputs
        return None if self.size == 2 else torch.ones(made, device=DEVICE)

    @cached_property
    def x(self) -> Tensor:
        return drawn(self.rows, self.inputs)

    @cached_property
    def residual(self) -> Tensor | None:
        return None if self.normed else drawn(self.rows, self.outputs)

    @cached_property
    def norm(self) -> tuple[Tensor, float] | None:
        return (drawn(self.inputs), 1e-6) if self.normed else None

    @property
    def chosen(self) -> Plan | None:
        rows = stream.bucket(self.rows)
        return stream.plan(self.inputs, self.outputs, self.gated, multiprocessors(DEVICE), rows, self.size)

    def plans(self) -> Iterator[Plan]:
        """Every tiling that the kernel supports."""
        for tiles, warps in itertools.product((1, 2, 4), (4, 8, 10)):
            if (self.gated and tiles == 1) or self.outputs % (8 * tiles // (1 + self.gated)):
                continue
            beside = partial(stream.bytes_beside, tiles, warps, self.inputs, self.rows)
            if beside(holds_x=False, registers=False) > STATIC_BYTES:
                continue
            step = 64 // self.size * warps
            for chunk in range(step, 2560 // self.size + 1, step):
                if self.inputs % chunk or self.size * chunk < (1024 if self.rows <= 8 else 512):
                    continue
                stage = stream.chunk_bytes(tiles, self.size * chunk)
                for registers in {False, stream.fits_registers(self.inputs, self.rows, warps)}:
                    held = registers or stream.holds(self.inputs, self.rows)
                    space = beside(holds_x=held, registers=registers)
                    depths = {min(16, (most - space) // stage) for most in SHARED_BYTES}
                    yield from (
                        Plan(tiles, warps, chunk, depth, held, self.size, registers)
                        for depth in depths
                        if depth >= 2
                    )

    def call(self, how: Plan | None, weight: Tensor) -> Tensor:
        """By cuBLAS where no tiling is given, and `stream.plan` has none."""
        how = how or self.chosen
        if how is None:
            return F.linear(self.x, weight)
        return stream.product(
            self.x,
            weight,
            norm=self.norm if how.holds_x else None,
            residual=self.residual,
            gated=self.gated,
            scales=self.scales,
            tiling=how,
        )

    def timed(self, how: Plan | None) -> float:
        turn = itertools.cycle(self.weights)
        return captured(lambda: self.call(how, next(turn)))

    def cublas(self) -> float:
        turn = itertools.cycle(self.weights)
        return captured(lambda: F.linear(self.x, next(turn))) if self.size == 2 else float("nan")


def alone(product: Product) -> list[Plan | None]:
    """Prints a row of the table. Returns None, which stands for `stream.plan`'s or else cuBLAS, then the
    fastest tilings."""
    every = list(product.plans())
    with ThreadPoolExecutor(initializer=partial(torch.cuda.set_device, 0)) as pool:  # compiles them
        list(pool.map(lambda how: product.call(how, product.weights[0]), every))
    took_us = product.timed(None)
    best = sorted(((product.timed(how), how) for how in every), key=lambda entry: entry[0])[:TRIED]
    rate = 1e-6 * product.size * product.weights[0].numel() / took_us
    ways = "; ".join(f"{t:.1f}: {shown(how)}" for t, how in best[:3])
    print(
        f"| {product.rows} | {product.name} | {took_us:.1f} | {rate:.2f} | {shown(product.chosen)} | {ways} "
        f"| {product.cublas():.1f} |",
        flush=True,
    )
    return [None, *(how for _, how in best)]


def shown(how: Plan | None) -> str:
    if how is None:
        return "–"
    return f"{how.tiles}, {how.warps}, {how.chunk}, {how.depth}{', registers' * how.registers}"


def in_layers(products: list[Product], tried: list[list[Plan | None]]) -> None:
    """Prints µs a layer as chosen, and with the best tiling of one GEMM after the other."""

    def layers(ways: list[Plan | None]) -> float:
        def call() -> None:
            for layer in range(LAYERS):
                for product, how in zip(products, ways, strict=True):
                    product.call(how, product.weights[layer])

        return captured(call, 3) / LAYERS

    ways: list[Plan | None] = [None] * len(products)
    print(f"\n{products[0].rows} rows: {layers(ways):.1f} µs a layer as chosen")
    for at, product in enumerate(products):
        timed = [(layers([*ways[:at], how, *ways[at + 1 :]]), how) for how in tried[at]]
        taken, ways[at] = min(timed, key=lambda entry: entry[0])
        print(
            f"- {product.name}: {taken:.1f} with {shown(ways[at])} (as chosen {timed[0][0]:.1f})", flush=True
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measurement."""
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--size", type=int, choices=[1, 2], default=2)


def main(arguments: argparse.Namespace) -> None:
    """Print each GEMM's tilings alone, then the best ones in whole layers."""
    shape = llama_shape(arguments.model)
    ranks = arguments.ranks
    heads, kv, ffn = shape.heads // ranks, max(1, shape.kv_heads // ranks), shape.ffn_width // ranks
    for rows in arguments.rows:
        products = [
            Product("qkv", (heads + 2 * kv) * shape.head_dim, shape.width, False, True, rows, arguments.size),
            Product("out", shape.width, heads * shape.head_dim, False, False, rows, arguments.size),
        ]
        if not shape.experts:
            products += [
                Product("gate and up", ffn, shape.width, True, True, rows, arguments.size),
                Product("down", shape.width, ffn, False, False, rows, arguments.size),
            ]
        if arguments.size == 1 and any(product.chosen is None for product in products):
            sys.exit(f"not all GEMMs of {rows} rows have a tiling for E4M3")
        print("\n| rows | GEMM | µs | TB/s | tiles, warps, chunk, depth | fastest, µs | cuBLAS, µs |")
        print("|---:|---|---:|---:|---|---|---:|")
        in_layers(products, [alone(product) for product in products])
