"""Requests whose times are not those of their source: random prompts, or those of a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from harness.lazy_sequence import LazySequence, make_sequence
from harness.schema.load import ClosedLoop, Ramp, RequestRate
from harness.schema.online_settings import OnlineSettings
from harness.schema.run_info import TraceRecord
from harness.workload.arrivals import arrival_times
from harness.workload.content import Content, Ints, SyntheticContent
from harness.workload.planned_requests import PlannedRequest
from harness.workload.request_source import L, OpenLoopSource, RequestSource

#: A request of a closed loop, whose rate is not known in advance, is taken to get a token this often.
STREAM_GAP_S = 0.005


class ContentSource(RequestSource[L]):
    """Requests of a content."""

    def __init__(self, settings: OnlineSettings, content: Content) -> None:
        super().__init__(settings)
        self.content = content
        self.is_random = isinstance(content, SyntheticContent)

    def input_lengths(self, size: int) -> list[int]:
        return self.content.input_lengths(size)

    def _take(self, n: int, seed: int, shape_seed: int, first: int = 0) -> Sequence[PlannedRequest]:
        """Requests without a time; no turn waits longer than the settings allow."""
        taken, most = self.content.take(n, seed, shape_seed, first), self.settings.max_think_s
        if most is None or isinstance(taken, LazySequence):
            return taken
        return [r if r.think_s is None else replace(r, think_s=min(r.think_s, most)) for r in taken]

    def _record(self, name: str, loads: str, drawn: Iterable[tuple[Ints, Ints]]) -> TraceRecord:
        lengths, content = list(drawn), self.content
        dropped = content.dropped
        return TraceRecord(
            **{"name": name} | content.about,
            origin=f"{loads}, {content.what}",
            dropped=dropped,
            requests=sum(len(inputs) for inputs, _ in lengths),
            fit="drop" if dropped else "none",
            input_tokens=sum(int(inputs.sum()) for inputs, _ in lengths),
            output_tokens=sum(int(outputs.sum()) for _, outputs in lengths),
            prompts=content.prompts,
        )


class ClosedLoopSource(ContentSource[ClosedLoop]):
    """A number of requests in flight: each is sent when another one ends."""

    def __init__(self, settings: OnlineSettings, content: Content) -> None:
        super().__init__(settings, content)
        *fewer, most = (str(load.value) for load, _ in self.first_repeat)
        in_flight = f"{', '.join(fewer)} and {most}" if fewer else most
        loads = f"{in_flight} request{'' if in_flight == '1' else 's'} in flight"
        drawn = (content.lengths(settings.requests(load), seed) for load, seed in self.first_repeat)
        self.record = self._record("closed loop", loads, drawn)

    def requests(
        self, load: ClosedLoop, seed: int, shape_seed: int, first: int = 0, n: int | None = None
    ) -> Sequence[PlannedRequest]:
        return self._take(self.settings.requests(load) if n is None else n, seed, shape_seed, first)

    def in_flight(self) -> int:
        return max(min(load.concurrency, self.settings.requests(load)) for load, _ in self.first_repeat)

    def requests_per_s(self) -> float:
        return 0.0

    def tokens_per_s(self) -> float:
        return self.in_flight() / STREAM_GAP_S


class RateSource(ContentSource[RequestRate | Ramp], OpenLoopSource[RequestRate | Ramp]):
    """So many requests a second, at times drawn from a seed."""

    def __init__(self, settings: OnlineSettings, content: Content) -> None:
        super().__init__(settings, content)
        loads = "; ".join(str(load) for load, _ in self.first_repeat)
        drawn = (content.lengths(len(self._arrivals(*shape)), shape[1]) for shape in self.first_repeat)
        self.record = self._record("synthetic", loads, drawn)

    def requests(
        self, load: RequestRate | Ramp, seed: int, shape_seed: int, first: int = 0, n: int | None = None
    ) -> Sequence[PlannedRequest]:
        times = self._arrivals(load, shape_seed)
        taken = self._take(len(times), seed, shape_seed)
        if isinstance(taken, LazySequence):  # none of them follows another
            return make_sequence(len(taken), lambda i: replace(taken[i], t_sched_s=float(times[i])))
        due = iter(times.tolist())
        return [r if r.think_s is not None else replace(r, t_sched_s=next(due)) for r in taken]

    def times(self) -> NDArray[np.float64]:
        return self._arrivals(*self.first_repeat[-1])

    def _arrivals(self, load: RequestRate | Ramp, shape_seed: int) -> NDArray[np.float64]:
        return arrival_times(load, shape_seed, self.settings.requests(load), self.settings.cell_s)
