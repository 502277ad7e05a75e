"""What sampling costs: decode steps of a Llama on this GPU with each kind of sampling; Markdown.

    python -m benchmarks.llama_sampling random:qwen3-8b --requests 64 --context 1088

The median of `--repeats` measurements of 30 steps each; the kinds take turns, so that the GPU's clock is the
same for all. `more` compares with greedy decoding. Weights and `--option` as in `llama_steps`.
"""

from __future__ import annotations

import argparse
import statistics

import msgspec

from benchmarks.llama_steps import GREEDY, decode_step, engine_of, take_options
from benchmarks.models import llama_name

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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=llama_name)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--context", type=int, default=1088)
    parser.add_argument("--repeats", type=int, default=5)
    take_options(parser)
    given = parser.parse_args()
    engine = engine_of(
        given.model,
        plain=False,
        max_model_len=given.context + 256,
        max_active_requests=given.requests,
        options=given.option,
    )
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(given.repeats + 1):
        for kind, settings in KINDS.items():
            how = msgspec.structs.replace(GREEDY, **settings)
            times[kind].append(decode_step(engine, given.requests, given.context, how=how) * 1e3)
    medians = {kind: statistics.median(taken[1:]) for kind, taken in times.items()}
    print("| sampling | ms per step | lowest to highest | more |\n|---|---:|---|---:|")
    for kind, taken in times.items():
        more = medians[kind] / medians["greedy"] - 1
        print(
            f"| {kind} | {medians[kind]:.3f} | {min(taken[1:]):.3f} to {max(taken[1:]):.3f} | {more:+.1%} |"
        )


if __name__ == "__main__":
    main()
