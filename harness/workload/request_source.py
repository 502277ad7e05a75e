"""Where the requests of a run come from: one interface of traces, mixtures of clients and prompts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from harness.loadgen.load_plan import WireRequest
from harness.loadgen.system_limits import most_in_flight
from harness.schema.load import Load
from harness.schema.online_settings import OnlineSettings
from harness.schema.run_info import TraceRecord
from harness.workload.planned_requests import PlannedRequest
from harness.workload.seeds import shape_seeds

L = TypeVar("L", bound=Load)

#: An open loop's load is taken to be as many requests as arrive in this time, at most MAX_WARMUP_BATCH.
WARMUP_WINDOW_S = 2.0
MAX_WARMUP_BATCH = 32


class RequestSource(ABC, Generic[L]):
    """The requests of a run's loads, which are all of one kind.

    Attributes:
        first_repeat: each load from light to heavy, and the seed of its shape in the first repeat.
        record: the requests of the first repeat, as the result files record them.
        is_random: each prompt is of random token ids of its own.
    """

    record: TraceRecord
    is_random = False

    def __init__(self, settings: OnlineSettings) -> None:
        self.settings = settings
        loads = cast("list[L]", settings.loads)
        self.first_repeat = list(zip(loads, shape_seeds(settings, 0), strict=True))

    @abstractmethod
    def requests(
        self, load: L, seed: int, shape_seed: int, first: int = 0, n: int | None = None
    ) -> Sequence[PlannedRequest]:
        """One cell's requests.

        Args:
            seed: Of the token ids of its prompts.
            shape_seed: Of its times, lengths and order, which are the same for every engine.
            first, n: Of a closed loop, the prompts to leave out and how many to take, else the settings'.
        """

    @abstractmethod
    def input_lengths(self, size: int) -> list[int]:
        """`size` numbers of prompt tokens, at evenly spaced quantiles."""

    @abstractmethod
    def in_flight(self) -> int:
        """Requests that the heaviest load may have in flight, as far as it is known in advance."""

    @abstractmethod
    def requests_per_s(self) -> float:
        """Requests a second of the heaviest load; 0 of a closed loop: its rate depends on the engine."""

    @abstractmethod
    def tokens_per_s(self) -> float:
        """Output tokens a second that the heaviest load asks for, as many chunks at most."""


class OpenLoopSource(RequestSource[L]):
    """Requests that have times of their own, whatever the engine answers."""

    @abstractmethod
    def times(self) -> NDArray[np.float64]:
        """When the requests of the heaviest load are due, in its first repeat."""

    def in_flight(self) -> int:
        due = [WireRequest(i, t, b"") for i, t in enumerate(self.times().tolist())]
        return min(most_in_flight(due, None, WARMUP_WINDOW_S), MAX_WARMUP_BATCH)

    def requests_per_s(self) -> float:
        times = self.times()
        return len(times) / max(float(times[-1] - times[0]), 1.0)

    def tokens_per_s(self) -> float:
        return self.requests_per_s() * self.record.output_tokens / max(1, self.record.requests)
