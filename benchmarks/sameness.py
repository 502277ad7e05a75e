"""Which answers change when others run beside them, and what `--batch-invariant` costs, on a CPU in bf16.

    python -m benchmarks.sameness [MODEL]

Greedy answers alone, then all at once with so little cache that requests are interrupted and computed again;
then the time of a prompt, and of a step of eight requests.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from roseinfer.config import EngineConfig
from roseinfer.llm import LLM
from roseinfer.request.params import SamplingParams

REQUESTS, TOKENS, REPEATS = 300, 48, 5


def load(model: str, *, batch_invariant: bool, **settings: object) -> LLM:
    config = EngineConfig(model, device="cpu", batch_invariant=batch_invariant, **settings)  # type: ignore[arg-type]
    return LLM(config)


def differing(model: str, *, dtype: str, batch_invariant: bool) -> tuple[int, int]:
    """Answers that are not those that the same request gets alone, and requests that were interrupted."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 50_000, rng.integers(4, 80)).tolist() for _ in range(REQUESTS)]
    params = SamplingParams(TOKENS, temperature=0.0, ignore_eos=True)
    llm = load(model, dtype=dtype, batch_invariant=batch_invariant)
    alone = [llm.generate([prompt], params)[0] for prompt in prompts]
    pressed = load(
        model, dtype=dtype, batch_invariant=batch_invariant,
        kv_tokens=1536, prefix_cache=True, chunked_prefill_size=64, admission_policy="pack",
    )  # fmt: skip
    together = pressed.generate(prompts, params)
    changed = sum(before != after for before, after in zip(alone, together, strict=True))
    return changed, pressed.engine.preemptions


def seconds(llm: LLM, requests: int, length: int, tokens: int) -> float:
    """Of the fastest of several goes."""
    rng, best = np.random.default_rng(1), float("inf")
    for _ in range(REPEATS):
        prompts = rng.integers(0, 50_000, (requests, length)).tolist()
        start = time.perf_counter()
        llm.generate(prompts, SamplingParams(tokens, temperature=0.0, ignore_eos=True))
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "random:gpt2-tiny"
    print(f"{model}: of {REQUESTS} answers of {TOKENS} tokens differ from the one alone")
    for dtype, invariant in (("fp32", False), ("bf16", False), ("bf16", True)):
        changed, interrupted = differing(model, dtype=dtype, batch_invariant=invariant)
        print(
            f"  {dtype} batch_invariant={invariant}: {changed}, with {interrupted} interruptions", flush=True
        )
    for invariant in (False, True):
        llm = load(model, dtype="bf16", batch_invariant=invariant)
        prompts = [1e3 * seconds(llm, 1, length, 1) for length in (64, 256, 960)]
        step = 1e3 * (seconds(llm, 8, 64, 65) - seconds(llm, 8, 64, 1)) / 64
        said = ", ".join(f"{ms:.1f}" for ms in prompts)
        print(f"  batch_invariant={invariant}: prompts of 64, 256, 960 {said} ms; step of 8 {step:.2f} ms")


if __name__ == "__main__":
    main()
