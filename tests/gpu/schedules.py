"""Random schedules: requests that arrive and leave at random steps, and their answers.

Processes of tests import this module, so it does without transformers, whose import takes seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from roseinfer.config import EngineConfig
from roseinfer.engine import resolve
from roseinfer.engine.core import Engine
from roseinfer.request.params import SamplingParams

#: A prompt, its greedy answer, and the logits before each token of that.
Case = tuple[list[int], list[int], torch.Tensor]

#: Share of the spread of a row of logits by which a logit may be off.
MARGINS = {"fp32": 1e-4, "fp16": 0.02, "bf16": 0.08, "fp8": 0.25}

_NEVER = 1 << 30


def check_schedule(
    engine: Engine, cases: list[Case], seed: int, margin: float, *, requests: tuple[int, int], steps: int
) -> None:
    """Serve random cases and compare their answers. One of seven is sampled, and is not compared.

    Args:
        seed: draws which cases come, when they arrive, and which leave before their end.
        margin: see `check_greedy`.
        requests: the fewest, and one more than the most.
        steps: over how many at most they arrive.
    """
    new_tokens = len(cases[0][1])
    rng = np.random.default_rng(seed)
    count = int(rng.integers(*requests))
    which = rng.integers(0, len(cases), count)
    arrives = np.sort(rng.integers(0, rng.integers(1, steps), count))
    leaves = np.where(rng.random(count) < 0.15, arrives + rng.integers(0, new_tokens + 4, count), _NEVER)
    answers: list[list[int]] = [[] for _ in range(count)]
    given, step = 0, 0
    while given < count or engine.has_work:
        while given < count and arrives[given] <= step:
            temperature = 0.9 if given % 7 == 6 else 0.0
            params = SamplingParams(new_tokens, ignore_eos=True, temperature=temperature, seed=given)
            engine.add(given, np.array(cases[which[given]][0], dtype=np.int32), params)
            given += 1
        for index in np.flatnonzero(leaves == step).tolist():
            engine.discard(index)
        result = engine.step()
        if result is not None:
            for index, token in zip(result.ids.tolist(), result.tokens.tolist(), strict=True):
                answers[index].append(token)
        step += 1
    engine.check_idle()
    for index, answer in enumerate(answers):
        assert len(answer) == new_tokens or leaves[index] < _NEVER
        if index % 7 != 6:
            _, expected, logits = cases[which[index]]
            check_greedy(answer, expected, logits, margin)


def check_llama(folder: Path, cases: list[Case], settings: dict[str, Any]) -> None:
    """Serve four random schedules on an engine. Settings in capitals are constants of
    `roseinfer.engine.resolve`."""
    config: dict[str, Any] = {"dtype": "bf16", "max_active_requests": 64}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            if name.isupper():
                patch.setattr(resolve, name, value)
            else:
                config[name] = value
        engine = Engine(EngineConfig(str(folder), device="cuda", **config))
    assert engine.info.model.fused_ops == settings.get("fused_ops", True)
    for seed in range(4):
        margin = MARGINS["fp8" if "fp8" in config.values() else config["dtype"]]
        check_schedule(engine, cases, seed, margin, requests=(3, 70), steps=60)
    engine.close()


def check_greedy(tokens: list[int], expected: list[int], logits: torch.Tensor, margin: float) -> None:
    """`tokens` are `expected`, or one that is nearly as likely where they first differ: its reference logit
    is within `margin` of the spread from the best."""
    differs = next((i for i, (a, b) in enumerate(zip(tokens, expected, strict=False)) if a != b), None)
    if differs is not None:
        row = logits[differs]
        assert row.max() - row[tokens[differs]] <= margin * (row.max() - row.min())
