"""Requests of a trace, at the times of the trace."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from harness.errors import UsageError
from harness.schema.load import TraceLoad
from harness.schema.online_settings import OnlineSettings
from harness.traces import catalog
from harness.traces.fit import Fitted, fit
from harness.traces.trace import Trace
from harness.workload.planned_requests import PlannedRequest, open_loop
from harness.workload.request_source import OpenLoopSource


class TraceSource(OpenLoopSource[TraceLoad]):
    """The head of the settings' trace, as much as the heaviest load needs.

    Raises:
        UsageError: The trace is not there or unreadable, or nothing fits the context.
    """

    def __init__(self, settings: OnlineSettings, vocab_size: int, context: int) -> None:
        super().__init__(settings)
        self._vocab_size, self._context = vocab_size, context
        self._heaviest, _ = self.first_repeat[-1]
        fitted = self._fit(catalog.load(settings.trace, self._is_enough))
        fitted = fitted.head(self._count(fitted.trace, self._heaviest))
        self.trace, self.record = fitted.trace, fitted.record()
        self.is_random = self.trace.blocks is None

    def requests(
        self, load: TraceLoad, seed: int, shape_seed: int, first: int = 0, n: int | None = None
    ) -> Sequence[PlannedRequest]:
        head = self.trace.head(self._count(self.trace, load))
        return open_loop(head, load.scale, self._vocab_size, seed)

    def input_lengths(self, size: int) -> list[int]:
        return self.trace.input_quantiles(size)

    def times(self) -> NDArray[np.float64]:
        return self.trace.arrival_s * self._heaviest.scale

    def _fit(self, trace: Trace) -> Fitted:
        return fit(trace, self.settings.fit, self._context, self.settings.max_output_len)

    def _is_enough(self, head: Trace) -> bool:
        """Whether no load needs more than this head; one factor for all lengths needs the whole trace."""
        if self.settings.fit == "scale":
            return False
        try:
            fitted = self._fit(head).trace
        except UsageError:
            return False
        return self._count(fitted, self._heaviest) < len(fitted)

    def _count(self, trace: Trace, load: TraceLoad) -> int:
        """Requests of the trace's head: `n`, or as many as arrive in the time that the cell is to last."""
        seconds = self.settings.cell_s / load.scale
        return max(self.settings.n, int(np.searchsorted(trace.arrival_s, seconds)) + 1)
