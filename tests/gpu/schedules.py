"""Random schedules: requests that arrive and leave at random steps, and their answers."""

from __future__ import annotations

import numpy as np
import torch

from roseinfer.engine.core import Engine
from roseinfer.request.params import SamplingParams

from .conftest import check_greedy

#: A prompt, its greedy answer, and the logits before each token of that.
Case = tuple[list[int], list[int], torch.Tensor]

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
