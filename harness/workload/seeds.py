"""Seeds of cells. 64 bits, so that no two loads of a run draw the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.schema.online_settings import OnlineSettings

#: Sets the seeds of shapes apart from those of prompts.
_SHAPES = 1


def prompt_seed(parts: Sequence[int]) -> int:
    """Of the token ids of a load's prompts."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0])


def shape_seeds(settings: OnlineSettings, repeat: int) -> list[int]:
    """For each load of a repeat, that of its times, lengths and order: the same for every engine."""
    return [
        int(
            np.random.SeedSequence([settings.seed, repeat, position], spawn_key=(_SHAPES,)).generate_state(
                1, np.uint64
            )[0]
        )
        for position in range(len(settings.loads))
    ]
