"""A few dozen random requests through an engine on a GPU, small enough for a run under compute-sanitizer.

    compute-sanitizer --tool memcheck --kernel-name \
        'regex=^(_[a-y]|attention|mlp|paged_decode|gqa_decode|stream|experts|draw|collective)' \
        python -m benchmarks.serve_a_few [MODEL] [--option NAME=VALUE …] [--ranks N]

MODEL is random:gpt2 if not given; another one runs in bf16. `--option quantization=fp8` is a setting of the
engine, as `EngineConfig` names it. With `--ranks` compute-sanitizer needs `--target-processes all`.
The expression names this project's kernels: others run at their own speed. They come from the graphs of all
batch sizes, together with prompts, as in a server; some are drawn by a seed.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from benchmarks.llama.steps import settings_of
from benchmarks.models import model_name
from roseinfer.config import EngineConfig
from roseinfer.llm import LLM
from roseinfer.request.params import SamplingParams

REQUESTS, NEW, CONTEXT = 80, 12, 512


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=model_name, nargs="?", default="random:gpt2")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    settings: dict[str, Any] = {
        "device": "cuda", "dtype": "fp16" if arguments.model == "random:gpt2" else "bf16",
        "max_model_len": CONTEXT, "prefill_max_tokens": CONTEXT, "max_active_requests": 64,
        "kv_tokens": 16384, "tensor_parallel_size": arguments.ranks,
    }  # fmt: skip
    llm = LLM(EngineConfig(arguments.model, **(settings | settings_of(arguments.option))))
    print("captured", flush=True)
    prompts = [rng.integers(0, 50000, n).tolist() for n in rng.integers(1, CONTEXT - NEW, REQUESTS)]
    how = [
        SamplingParams(NEW, ignore_eos=True, temperature=0.9 * (index % 7 == 6), seed=index)
        for index in range(REQUESTS)
    ]
    first = llm.generate(prompts, how)
    llm.engine.flush_cache()  # a prefix that is found changes how prompts share steps, and so how sums round
    second = llm.generate(prompts, how)
    llm.engine.check_idle()
    llm.engine.close()
    assert first == second, "answers depend on what ran before"
    print(f"{REQUESTS} answers of {NEW} tokens, twice the same")


if __name__ == "__main__":
    main()
