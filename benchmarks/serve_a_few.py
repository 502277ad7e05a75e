"""A few dozen random requests through an engine on a GPU, small enough for a run under compute-sanitizer.

    compute-sanitizer --tool memcheck --kernel-name \
        'regex=^(_[a-y]|attention|mlp|paged_decode|gqa_decode|stream|draw)' \
        python -m benchmarks.serve_a_few [MODEL]

MODEL is random:gpt2 if not given; another one runs in bf16.
The expression names this project's kernels: others run at their own speed. They come from the graphs of all
batch sizes, together with prompts, as in a server; some are drawn by a seed.
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.models import model_name
from roseinfer.config import EngineConfig
from roseinfer.llm import LLM
from roseinfer.request.params import SamplingParams

REQUESTS, NEW, CONTEXT = 80, 12, 512


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=model_name, nargs="?", default="random:gpt2")
    model = parser.parse_args().model
    rng = np.random.default_rng(0)
    config = EngineConfig(
        model, device="cuda", dtype="fp16" if model == "random:gpt2" else "bf16", max_model_len=CONTEXT,
        prefill_max_tokens=CONTEXT, max_active_requests=64, kv_tokens=16384,
    )  # fmt: skip
    llm = LLM(config)
    print("captured", flush=True)
    prompts = [rng.integers(0, 50000, n).tolist() for n in rng.integers(1, CONTEXT - NEW, REQUESTS)]
    how = [
        SamplingParams(NEW, ignore_eos=True, temperature=0.9 * (index % 7 == 6), seed=index)
        for index in range(REQUESTS)
    ]
    first, second = llm.generate(prompts, how), llm.generate(prompts, how)
    llm.engine.check_idle()
    assert first == second, "answers depend on what ran before"
    print(f"{REQUESTS} answers of {NEW} tokens, twice the same")


if __name__ == "__main__":
    main()
