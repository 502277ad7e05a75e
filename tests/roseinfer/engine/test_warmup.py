"""Steps that warm an engine up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from roseinfer.config import EngineConfig
from roseinfer.engine.warmup import warm_up
from roseinfer.request.limits import Limits
from roseinfer.request.params import SamplingParams


@pytest.mark.parametrize("most", [1, 2, 4096])
def test_the_largest_steps_are_warmed_up(most: int) -> None:
    class Counts:
        """Takes requests, and ends all of them with the first step."""

        info: Any = SimpleNamespace(
            config=EngineConfig(device="cuda", prefill_max_tokens=most), limits=Limits(100, 66, 6600)
        )
        sizes, waiting = set[int](), 0

        @property
        def has_work(self) -> bool:
            return self.waiting > 0

        def add(self, request_id: int, prompt: NDArray[np.int32], params: SamplingParams) -> None:
            self.waiting += len(prompt)

        def step(self) -> None:
            self.sizes.add(self.waiting)
            self.waiting = 0

        def flush_cache(self) -> None: ...

    engine = Counts()
    warm_up(engine)
    assert {max(1, most // 2), most} <= engine.sizes
