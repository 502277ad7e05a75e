"""Decode steps of a Llama on this GPU with each kind of sampling.

    python -m benchmarks.llama sampling random:qwen3-8b --requests 64 --context 1088

The median of `--repeats` measurements of 30 steps each; the kinds take turns, so that the GPU's clock is the
same for all. `more` compares with greedy decoding. Weights and `--option` as in `steps`.
"""

from __future__ import annotations

import argparse
import statistics

import msgspec

from benchmarks.llama.steps import GREEDY, decode_step, engine_of

KINDS: dict[str, dict[str, float]] = {
    "greedy": {},
    "temperature 1": {"temperature": 1.0},
    "top_p 0.9": {"temperature": 1.0, "top_p": 0.9},
    "top_k 50": {"temperature": 1.0, "top_k": 50},
    "min_p 0.05": {"temperature": 1.0, "min_p": 0.05},
    "temperature 0.7, top_p 0.9, top_k 50": {"temperature": 0.7, "top_p": 0.9, "top_k": 50},
    "repetition_penalty 1.1": {"repetition_penalty": 1.1},
    "presence_penalty 1, frequency_penalty 0.5": {"presence_penalty": 1.0, "frequency_penalty": 0.5},
    "temperature 1, repetition_penalty 1.1": {"temperature": 1.0, "repetition_penalty": 1.1},
    "temperature 0.7, top_p 0.9, repetition_penalty 1.1": {
        "temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.1,
    },
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measurement."""
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--context", type=int, default=1088)
    parser.add_argument("--repeats", type=int, default=5)


def main(arguments: argparse.Namespace) -> None:
    """Print the median step of each kind, and how much longer than a greedy one it takes."""
    engine = engine_of(
        arguments.model,
        plain=False,
        max_model_len=arguments.context + 256,
        max_active_requests=arguments.requests,
        options=arguments.option,
    )
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(arguments.repeats + 1):
        for kind, settings in KINDS.items():
            how = msgspec.structs.replace(GREEDY, **settings)
            times[kind].append(decode_step(engine, arguments.requests, arguments.context, how=how) * 1e3)
    medians = {kind: statistics.median(taken[1:]) for kind, taken in times.items()}
    print("| sampling | ms per step | lowest to highest | more |\n|---|---:|---|---:|")
    for kind, taken in times.items():
        more = medians[kind] / medians["greedy"] - 1
        print(
            f"| {kind} | {medians[kind]:.3f} | {min(taken[1:]):.3f} to {max(taken[1:]):.3f} | {more:+.1%} |"
        )
