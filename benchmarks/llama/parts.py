"""Kernels of a Llama's layer one by one, in bfloat16 on this GPU.

    python -m benchmarks.llama parts random:qwen3-8b --only products,tiles,prompts,decode,between

`products`: GEMMs by cuBLAS, for each of `--rows`, with the weights of several layers, so that none stays in
the L2 cache. `tiles`: what follows attention in a layer (out and norm, gate and up with SwiGLU, down and
norm) by cuBLAS and by Triton in several tilings, for those of `--rows` up to 256. `prompts`: prefill
attention by the Triton kernel, with contiguous keys and with a paged cache, by FlashAttention-3 where
fa3-fwd is installed, and by cuDNN for variable lengths. `decode`: decode attention with every launch
configuration (`How`). `between`: norms, SwiGLU and RoPE. Times are µs a call in a captured graph of many,
except cuDNN's, which cannot be captured. `furthest`: the largest difference of the prefill kernels from the
first.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.llama.steps import median
from benchmarks.models import llama_shape
from roseinfer.attention.prefill import Spans
from roseinfer.attention.prefill_backends import FlashAttention3, flash3_loads
from roseinfer.kernels.cuda.gqa_decode import Heads, How, Rotation, gqa_decode, how_for
from roseinfer.kernels.triton.gated import GatedTile, gated_product
from roseinfer.kernels.triton.pipelined import PipelinedTile
from roseinfer.kernels.triton.prefill import prefill, prefill_paged
from roseinfer.kernels.triton.products import product_in_parts
from roseinfer.kernels.triton.rms_norm import add_rms_norm_
from roseinfer.kernels.triton.rotate import rotate_
from roseinfer.kernels.triton.swiglu import swiglu
from rosemodels import llama

DEVICE, DTYPE, BLOCK = torch.device("cuda"), torch.bfloat16, 16
#: Layers whose weights a GEMM uses in turn.
LAYERS = 8
ROWS = (64, 128, 256, 512, 576, 768, 1024, 1088, 2048, 4096, 8192)
#: New tokens of each prompt, and cached tokens before them.
PROMPTS = (
    ([1024], [0]), ([1024] * 8, [0] * 8), ([4096], [0]), ([256] * 32, [0] * 32), ([500, 460], [524, 0]),
    ([960], [64]), ([1024], [7168]),
)  # fmt: skip
#: Requests that decode, and tokens of each.
EQUAL = (
    (1, 1088), (4, 1088), (8, 1088), (16, 1088), (64, 288), (64, 1088), (256, 288), (256, 1088), (1, 32000),
)  # fmt: skip
#: Tokens of requests as in the middle of an offline batch, in random order.
MIXED = torch.randint(200, 1900, (256,), generator=torch.Generator().manual_seed(0)).tolist()
#: Tokens of each request: equal; mixed, also a quarter and half as many.
DECODES = (
    *([length] * count for count, length in EQUAL),
    *(
        [int(length * part) for length in MIXED[:count]]
        for count in (4, 16, 24, 32, 48, 64, 96, 128, 192, 256)
        for part in (0.25, 0.5, 1)
    ),
)
SUMS = [
    PipelinedTile(rows, outputs, splits=splits, stages=4)
    for rows, outputs, splits in itertools.product((64, 128), (32, 64, 128), (1, 2, 4))
]
GATES = [
    GatedTile(rows, outputs, stages=stages, warps=warps)
    for rows, outputs, stages, warps in itertools.product((64, 128), (32, 64), (3, 4), (4, 8))
]
HOWS = [How(*how) for how in itertools.product((2, 4, 8), (2, 3), (1, 2, 4, 8))]


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, device=DEVICE, dtype=DTYPE)


def spent(run: Callable[[], object], calls: int) -> float:
    """µs for each of the `calls` calls that `run` makes."""
    return 1e6 * median(run, repeats=7) / calls


def repeated(call: Callable[[], object], times: int) -> None:
    for _ in range(times):
        call()


def captured(call: Callable[[], object], calls: int = 20) -> float:
    """µs of a call in a graph of many."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        repeated(call, 2)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        repeated(call, calls)
    return spent(graph.replay, calls)


def products(shape: llama.Shape, all_rows: Sequence[int] = ROWS) -> Iterator[str]:
    heads, ffn = (shape.heads + 2 * shape.kv_heads) * shape.head_dim, shape.ffn_width
    sizes = {
        "qkv": (heads, shape.width),
        "out": (shape.width, shape.heads * shape.head_dim),
        "gate and up": (2 * ffn, shape.width),
        "down": (shape.width, ffn),
    }
    weights = [[drawn(*size) for _ in range(LAYERS)] for size in sizes.values()]
    yield f"| rows | {' | '.join(f'{name}: µs, TFLOP/s' for name in sizes)} | a layer, µs | layers, ms |"
    yield "|---:" * (len(sizes) + 3) + "|"

    def product(x: Tensor, own: Iterator[Tensor]) -> Tensor:
        return F.linear(x, next(own))

    for rows in all_rows:
        times = [captured(partial(product, drawn(rows, w[0].shape[1]), itertools.cycle(w))) for w in weights]
        rates = [2e-6 * rows * w[0].numel() / t for w, t in zip(weights, times, strict=True)]
        cells = " | ".join(f"{t:.1f}, {rate:.0f}" for t, rate in zip(times, rates, strict=True))
        yield f"| {rows} | {cells} | {sum(times):.0f} | {1e-3 * shape.layers * sum(times):.2f} |"


def tiles(shape: llama.Shape, all_rows: Sequence[int] = ROWS) -> Iterator[str]:
    yield "| rows | kernel | cuBLAS, µs | fastest, µs |"
    yield "|---:|---|---:|---|"
    gain, ffn = drawn(shape.width), shape.ffn_width
    sizes = {"out": (shape.width, shape.heads * shape.head_dim), "down": (shape.width, ffn)}
    weights = {name: [drawn(*size) for _ in range(LAYERS)] for name, size in sizes.items()}
    gates = [drawn(2 * ffn, shape.width) for _ in range(LAYERS)]

    def fastest(times: dict[PipelinedTile | None, float] | dict[GatedTile | None, float]) -> str:
        best = sorted((t, str(tile)) for tile, t in times.items() if tile is not None)[:3]
        return f"{times.pop(None):.1f} | {', '.join(f'{t:.1f}: `{tile}`' for t, tile in best)}"

    for rows in (rows for rows in all_rows if rows <= 256):
        hidden = drawn(rows, shape.width)
        for name, layers in weights.items():
            x = drawn(rows, layers[0].shape[1])
            fitting = [tile for tile in SUMS if tile.takes(x, layers[0])]
            summed = {
                tile: captured(partial(_summed, hidden, x, itertools.cycle(layers), gain, tile))
                for tile in (None, *fitting)
            }
            yield f"| {rows} | {name} and norm | {fastest(summed)} |"
        taking = [tile for tile in GATES if tile.takes(hidden, gates[0])]
        gated = {
            tile: captured(partial(_gated, hidden, itertools.cycle(gates), tile)) for tile in (None, *taking)
        }
        yield f"| {rows} | gate and up | {fastest(gated)} |"


def _summed(
    hidden: Tensor, x: Tensor, weights: Iterator[Tensor], gain: Tensor, tile: PipelinedTile | None
) -> None:
    weight = next(weights)
    branch = F.linear(x, weight)[None] if tile is None else product_in_parts(x, weight, tile)
    add_rms_norm_(hidden, branch, gain, 1e-6)


def _gated(x: Tensor, weights: Iterator[Tensor], tile: GatedTile | None) -> None:
    weight = next(weights)
    if tile is None:
        swiglu(F.linear(x, weight))
    else:
        gated_product(x, weight, tile)


def prompts(shape: llama.Shape) -> Iterator[str]:
    dim, sizes = shape.head_dim, [shape.heads, shape.kv_heads, shape.kv_heads]
    yield "| tokens | cached | in a row, µs | in blocks | FA-3 | cuDNN | TFLOP/s in a row | furthest |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    fa3 = FlashAttention3() if flash3_loads() else None
    for counts, contexts in PROMPTS:
        lengths = [a + b for a, b in zip(counts, contexts, strict=True)]
        query, key = (
            torch.tensor([0, *itertools.accumulate(each)], dtype=torch.int32, device=DEVICE)
            for each in (counts, lengths)
        )
        q = drawn(sum(counts), sum(sizes), dim)[:, : shape.heads]
        blocks = -(-max(lengths) // BLOCK)
        table = torch.randperm(len(counts) * blocks, device=DEVICE).view(len(counts), blocks).int()
        keys, values = drawn(2, table.numel() * BLOCK, shape.kv_heads, dim)
        slots = torch.cat(
            [
                (blocks_of.long()[:, None] * BLOCK + torch.arange(BLOCK, device=DEVICE)).ravel()[:length]
                for blocks_of, length in zip(table, lengths, strict=True)
            ]
        )
        k, v = keys[slots], values[slots]
        rows = torch.arange(len(counts), dtype=torch.int32, device=DEVICE)
        paged = torch.empty(sum(counts), shape.heads, dim, dtype=DTYPE, device=DEVICE)
        in_a_row = partial(prefill, q, k, v, query, key)
        in_blocks = partial(prefill_paged, q, keys, values, query, key, table, rows, BLOCK, paged)
        times: list[float | None] = [captured(in_a_row), captured(in_blocks), None, None]
        outputs = [paged]
        if fa3 is not None:
            spans = Spans(query, key, max(counts), max(lengths))
            outputs.append(fa3(q, k, v, spans))
            times[2] = captured(partial(fa3, q, k, v, spans))
        if not any(contexts):  # cuDNN's mask begins at the first key
            tensors = q, k, v, None, query, key, max(counts), max(lengths), False, 0.0, True
            cudnn = partial(torch.ops.aten._cudnn_attention_forward, *tensors)
            outputs.append(cudnn()[0].view_as(paged))
            times[3] = spent(partial(repeated, cudnn, 20), 20)
        pairs = sum(n * c + n * n / 2 for n, c in zip(counts, contexts, strict=True))
        rate = 4e-6 * shape.heads * dim * pairs / captured(in_a_row)
        expected = in_a_row().float()
        furthest = max(float((each.float() - expected).abs().max()) for each in outputs)
        cells = " | ".join("–" if t is None else f"{t:.1f}" for t in times)
        yield f"| {shown(counts)} | {shown(contexts)} | {cells} | {rate:.0f} | {furthest:.1e} |"


def of_decode(tokens: Sequence[int]) -> str:
    if len(set(tokens)) == 1:
        return f"{len(tokens)} × {tokens[0]}"
    return f"{len(tokens)} × {min(tokens)} to {max(tokens)}"


def shown(numbers: list[int]) -> str:
    return f"{len(numbers)} × {numbers[0]}" if len(set(numbers)) == 1 else ", ".join(map(str, numbers))


def decode(shape: llama.Shape) -> Iterator[str]:
    heads, normed = Heads(shape.heads, shape.kv_heads, shape.head_dim), rotation(shape)
    yield "| requests of tokens | TB/s as chosen | µs as chosen | if short | fastest: warps, depth, splits |"
    yield "|---|---:|---:|---:|---|"
    for tokens in DECODES:
        count, blocks = len(tokens), -(-max(tokens) // BLOCK)
        table = torch.randperm(count * blocks, device=DEVICE).view(count, blocks).int()
        caches = drawn(max(1, (1 << 28) // table.numel() // BLOCK // heads.keys // heads.dim), 2,
                       table.numel() * BLOCK, heads.keys, heads.dim)  # fmt: skip
        qkv = drawn(count, (heads.queries + 2 * heads.keys) * heads.dim)
        rows = torch.arange(count, dtype=torch.int32, device=DEVICE)
        lengths = torch.tensor(tokens, dtype=torch.int32, device=DEVICE)
        turn = itertools.cycle([(cache[0], cache[1]) for cache in caches])

        attend = partial(attended, qkv, heads, normed, turn, (table, rows, lengths))
        times = {how: captured(partial(attend, how)) for how in HOWS if fits(how, heads)}
        chosen, short = (
            times[how_for(count, heads.keys, context, heads.dim)] for context in (sum(tokens) // count, 0)
        )
        moved = 4e-6 * sum(tokens) * heads.keys * heads.dim
        best = ", ".join(
            f"{t:.1f}: {how.warps}, {how.depth}, {how.splits}"
            for how, t in sorted(times.items(), key=lambda timed: timed[1])[:3]
        )
        yield f"| {of_decode(tokens)} | {moved / chosen:.2f} | {chosen:.1f} | {short:.1f} | {best} |"


def attended(
    qkv: Tensor, heads: Heads, normed: Rotation, caches: Iterator[tuple[Tensor, Tensor]],
    requests: tuple[Tensor, Tensor, Tensor], how: How,
) -> None:  # fmt: skip
    gqa_decode(qkv, heads, normed, next(caches), *requests, BLOCK, how)


def fits(how: How, heads: Heads) -> bool:
    """Return whether the ring buffers fit the shared memory of an SM."""
    return how.warps * how.depth * 2 * BLOCK * (2 * heads.dim + 40) <= 220 << 10


def rotation(shape: llama.Shape) -> Rotation:
    gain = torch.ones(shape.head_dim, dtype=DTYPE, device=DEVICE) if shape.qk_norm else None
    return Rotation(torch.randn(33_000, shape.head_dim, device=DEVICE), gain, gain, 1e-6)


def between(shape: llama.Shape) -> Iterator[str]:
    heads = Heads(shape.heads, shape.kv_heads, shape.head_dim)
    yield "| rows | norm of a sum: µs, TB/s | SwiGLU | rotation and append |"
    yield "|---:|---:|---:|---:|"
    for rows in (64, 1024, 8192):
        x, branch, gain = drawn(rows, shape.width), drawn(1, rows, shape.width), drawn(shape.width)
        gates, qkv = drawn(rows, 2 * shape.ffn_width), drawn(rows, heads.queries + 2 * heads.keys, heads.dim)
        cache = drawn(2, rows, heads.keys, heads.dim)
        positions = torch.arange(rows, dtype=torch.int32, device=DEVICE)
        store = cache[0], cache[1], positions
        flat, turns = qkv.view(rows, -1), rotation(shape)
        times = [
            captured(partial(add_rms_norm_, x, branch, gain, 1e-6)),
            captured(partial(swiglu, gates)),
            captured(partial(rotate_, flat, positions, heads, turns, store)),
        ]
        turned = 2 * heads.queries + 5 * heads.keys
        moved = [2 * rows * n for n in (4 * shape.width, 3 * shape.ffn_width, turned * heads.dim)]
        cells = " | ".join(f"{t:.1f}, {1e-6 * n / t:.2f}" for t, n in zip(times, moved, strict=True))
        yield f"| {rows} | {cells} |"


BY_ROWS = {"products": products, "tiles": tiles}
PARTS = {"prompts": prompts, "decode": decode, "between": between}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measurement."""
    parser.add_argument("--only", default=",".join((*BY_ROWS, *PARTS)))
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)


def main(arguments: argparse.Namespace) -> None:
    """Print the table of each part."""
    shape = llama_shape(arguments.model)
    for part in arguments.only.split(","):
        print(f"\n{part} of {arguments.model}\n")
        lines = BY_ROWS[part](shape, arguments.rows) if part in BY_ROWS else PARTS[part](shape)
        for line in lines:
            print(line, flush=True)
