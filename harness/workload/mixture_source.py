"""Requests of a mixture of clients, at a rate."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np
from numpy.typing import NDArray

from harness.schema.load import RequestRate
from harness.schema.online_settings import OnlineSettings
from harness.schema.run_info import TraceRecord
from harness.traces.fit import Fitted, fit, room
from harness.traces.servegen import CITATION, read_mixture
from harness.workload.mixture import mixture_requests
from harness.workload.planned_requests import PlannedRequest, open_loop
from harness.workload.request_source import OpenLoopSource


class MixtureSource(OpenLoopSource[RequestRate]):
    """What the clients that a folder describes send.

    Raises:
        UsageError: The folder is not there or unreadable, or nothing fits the context.
    """

    def __init__(self, settings: OnlineSettings, folder: str, vocab_size: int, context: int) -> None:
        super().__init__(settings)
        self._vocab_size, self._context = vocab_size, context
        self._mixture = read_mixture(folder)
        if settings.fit == "drop":
            self._mixture = self._mixture.within(room(context))
        drawn = [self._draw(load, seed) for load, seed in self.first_repeat]
        self._heaviest = drawn[-1].trace
        self.record = self._record([fitted.record() for fitted in drawn])

    def requests(
        self, load: RequestRate, seed: int, shape_seed: int, first: int = 0, n: int | None = None
    ) -> Sequence[PlannedRequest]:
        return open_loop(self._draw(load, shape_seed).trace, 1.0, self._vocab_size, seed)

    def input_lengths(self, size: int) -> list[int]:
        return self._heaviest.input_quantiles(size)

    def times(self) -> NDArray[np.float64]:
        return self._heaviest.arrival_s

    def _draw(self, load: RequestRate, shape_seed: int) -> Fitted:
        """The requests at a rate. For the few that --fit scale drops, more are drawn."""
        settings, drawn_each = self.settings, 1.0
        n, seconds = settings.requests(load), settings.cell_s
        while True:
            rate, count = load.req_per_s * drawn_each, ceil(n * drawn_each)
            drawn = mixture_requests(self._mixture, rate, shape_seed, count, seconds)
            fitted = fit(drawn, settings.fit, self._context, settings.max_output_len)
            kept = len(fitted.trace)
            if kept == len(drawn) or (drawn_each > 1 and kept >= n):
                in_time = int(np.searchsorted(fitted.trace.arrival_s, seconds, side="right"))
                return fitted.head(max(n, in_time))
            drawn_each = max(drawn_each + (1 / n if kept < n else 0), len(drawn) / kept)

    def _record(self, parts: list[TraceRecord]) -> TraceRecord:
        names = ("requests", "dropped", "changed", "input_tokens", "output_tokens")
        sums = {name: sum(getattr(part, name) for part in parts) for name in names}
        sums["dropped"] += round(sums["requests"] * self._mixture.dropped_each)
        note = "drawn from published statistics of clients, not recorded"
        return parts[0].model_copy(update=sums | {"citation": CITATION, "note": note})
