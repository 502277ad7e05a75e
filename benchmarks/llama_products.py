"""Products of a Llama's layer by the number of rows, by cuBLAS, in a captured graph; Markdown.

    python -m benchmarks.llama_products qwen3-8b 256 512 768 1024

µs a layer, of all four products, and TFLOP/s; the weights of several layers, so that none stays in the cache.
"""

from __future__ import annotations

import argparse

import torch

from benchmarks.llama_steps import median
from rosemodels import llama

LAYERS = 8


def weights(shape: llama.Shape) -> list[torch.Tensor]:
    """Of a layer, `[outputs, inputs]`: queries, keys and values, out, gates and up, down."""
    width, heads = shape.width, shape.heads * shape.head_dim
    keys, ffn = shape.kv_heads * shape.head_dim, shape.ffn_width
    sizes = [(heads + 2 * keys, width), (width, heads), (2 * ffn, width), (width, ffn)]
    return [torch.randn(size, device="cuda", dtype=torch.bfloat16) for size in sizes]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("shape", choices=llama.SHAPES)
    parser.add_argument("rows", type=int, nargs="+")
    given = parser.parse_args()
    layers = [weights(llama.SHAPES[given.shape]) for _ in range(LAYERS)]
    per_row = 2 * sum(weight.numel() for weight in layers[0])
    print("| rows | µs a layer | µs each | µs a row | TFLOP/s |\n|---:|---:|---|---:|---:|")
    for rows in given.rows:
        each = []
        for index in range(len(layers[0])):
            own = [layer[index] for layer in layers]
            x = torch.randn(rows, own[0].shape[1], device="cuda", dtype=torch.bfloat16)
            for weight in own:
                x @ weight.T
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for weight in own * 4:
                    x @ weight.T
            each.append(median(graph.replay) / len(own) / 4)
        taken = sum(each)
        parts = ", ".join(f"{seconds * 1e6:.1f}" for seconds in each)
        print(
            f"| {rows} | {taken * 1e6:.0f} | {parts} | {taken * 1e6 / rows:.3f} "
            f"| {rows * per_row / taken / 1e12:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
