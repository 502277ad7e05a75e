"""On PYTHONPATH it makes roseinfer slower by a known share: every step takes 1 + `SLOWED_BY` times as long.

Python imports it when it starts. The engine process waits awake after each step, as if the step had more to
compute; every other process is left alone.
"""

import os
import sys
from time import perf_counter

if "roseinfer.engine.process" in sys.orig_argv:
    from roseinfer.engine.core import Engine
    from roseinfer.scheduler.scheduler import StepResult

    share = float(os.environ["SLOWED_BY"])
    step = Engine.step

    def slowed(self: Engine) -> StepResult | None:
        begin = perf_counter()
        result = step(self)
        due = begin + (1 + share) * (perf_counter() - begin)
        while perf_counter() < due:
            pass
        return result

    Engine.step = slowed  # type: ignore[method-assign]
