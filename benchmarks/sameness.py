"""Which answers change when others run beside them, and what `--batch-invariant` costs, on a CPU in bf16.

    python -m benchmarks.sameness [--only-costs] [MODEL]

Greedy answers alone, then all at once with so little cache that requests are interrupted and computed again;
then the time of a prompt, and of a step of one request and of eight, both ways in turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.models import model_name
from roseinfer.config import EngineConfig
from roseinfer.llm import LLM
from roseinfer.request.params import SamplingParams

REQUESTS, TOKENS, REPEATS = 300, 48, 9


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
    """Of that many requests at once."""
    prompts = np.random.default_rng(1).integers(0, 40_000, (requests, length)).tolist()
    start = time.perf_counter()
    llm.generate(prompts, SamplingParams(tokens, temperature=0.0, ignore_eos=True))
    return time.perf_counter() - start


def prompt_ms(llm: LLM, length: int) -> float:
    """To the first token of one request."""
    return 1e3 * seconds(llm, 1, length, 1)


def step_ms(llm: LLM, requests: int) -> float:
    """Of a step in which each of `requests` gets a token."""
    return 1e3 * (seconds(llm, requests, 64, 65) - seconds(llm, requests, 64, 1)) / 64


def costs(model: str) -> None:
    """Print what is measured with and without, in turns, and the ratio of the pairs."""
    plain, invariant = (load(model, dtype="bf16", batch_invariant=each) for each in (False, True))
    parts: dict[str, Callable[[LLM], float]] = {
        **{f"prompt of {n}": partial(prompt_ms, length=n) for n in (64, 256, 960)},
        **{f"step of {n}": partial(step_ms, requests=n) for n in (1, 8)},
    }
    for name, measure in parts.items():
        measure(plain), measure(invariant)
        pairs = np.array([(measure(plain), measure(invariant)) for _ in range(REPEATS)])
        low, middle, high = np.percentile(pairs[:, 1] / pairs[:, 0], (25, 50, 75))
        before, after = np.median(pairs, 0)
        print(f"  {name}: {before:.2f} ms, with {after:.2f} ms; ratio {middle:.2f} ({low:.2f} to {high:.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only-costs", action="store_true")
    parser.add_argument("model", type=model_name, nargs="?", default="random:gpt2-tiny")
    settings = parser.parse_args()
    if not settings.only_costs:
        differences(settings.model)
    print(f"{settings.model}, bf16, without and with batch_invariant, in turns")
    costs(settings.model)


def differences(model: str) -> None:
    """Print how many answers are not those that the same request gets alone."""
    print(f"{model}: of {REQUESTS} answers of {TOKENS} tokens differ from the one alone")
    for dtype, invariant in (("fp32", False), ("bf16", False), ("bf16", True)):
        changed, interrupted = differing(model, dtype=dtype, batch_invariant=invariant)
        print(
            f"  {dtype} batch_invariant={invariant}: {changed}, with {interrupted} interruptions", flush=True
        )


if __name__ == "__main__":
    main()
