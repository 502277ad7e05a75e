"""Requests of a mixture of clients at a rate: each client's own renewal process and lengths, added up."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from harness.schema.load import RequestRate
from harness.schema.run_info import TraceRecord
from harness.traces import sampling
from harness.traces.fit import Fitted, room
from harness.traces.servegen import CITATION, Mixture, TrafficClient, read_mixture
from harness.traces.trace import Trace
from harness.workload.planned_requests import PlannedRequest, open_loop
from harness.workload.sources import FittedSource, Loads

#: Streams of the seed that clients draw from; the lower ones are for what is not of a client.
FIRST_STREAM, STREAMS = 16, 3
#: Mean gaps that a client has been sending for when the load begins, so that clients do not begin together.
BEFORE = 20


def mixture_requests(mixture: Mixture, req_per_s: float, seed: int, n: int, seconds: float) -> Trace:
    """Draw `n` requests, or as many as arrive in `seconds`, at `req_per_s`; each client keeps its share."""
    span = max(seconds, n / req_per_s)
    while True:
        parts = [
            _client_requests(client, client.req_per_s / mixture.req_per_s * req_per_s, span, seed, position)
            for position, client in enumerate(mixture.clients)
        ]
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        arrival, inputs, outputs = (column[order] for column in columns)
        if len(arrival) >= n and (not seconds or arrival[-1] - arrival[0] >= seconds):
            count = max(n, int(np.searchsorted(arrival - arrival[0], seconds, side="right")))
            return Trace.build(
                "mixture of clients", arrival[:count], inputs[:count], outputs[:count],
                origin=mixture.origin, sha256=mixture.sha256,
            )  # fmt: skip
        span *= 1.5


def _client_requests(
    client: TrafficClient, req_per_s: float, span: float, seed: int, position: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Draw the times of one client from 0 to `span`, and the lengths of its requests; (k,) each."""
    stream = FIRST_STREAM + STREAMS * position
    before = BEFORE / req_per_s
    count = ceil((before + span) * req_per_s)
    while True:
        times = np.cumsum(_gaps(client, sampling.uniforms(count, seed, stream))) / req_per_s - before
        if times[-1] > span:
            break
        count *= 2
    within = (times >= 0) & (times <= span)
    inputs, outputs = client.lengths(*(sampling.uniforms(count, seed, stream + i) for i in (1, 2)))
    return times[within], inputs[within], outputs[within]


def _gaps(client: TrafficClient, uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return gaps of mean 1 with the client's distribution; the shape of `uniforms`."""
    shape = client.shape
    if client.pattern == "Gamma":
        gaps: NDArray[np.float64] = special.gammaincinv(shape, uniforms) / shape
        return gaps
    weibull: NDArray[np.float64] = (-np.log1p(-uniforms)) ** (1 / shape) / special.gamma(1 + 1 / shape)
    return weibull


class MixtureSource(FittedSource[RequestRate]):
    """Requests of the clients that a folder describes.

    Raises:
        UsageError: The folder is missing or unreadable, or nothing fits the context.
    """

    def __init__(self, loads: Loads[RequestRate], folder: str, *fitting: Any) -> None:
        super().__init__(loads, *fitting)
        self._mixture = read_mixture(folder)
        if self._rule == "drop":
            self._mixture = self._mixture.within(room(self._context))
        fitted = [self._draw(load, seed) for load, seed in loads.first_repeat]
        self.trace = fitted[-1].trace
        self.record = self._sum([it.record() for it in fitted])

    def requests(
        self, load: RequestRate, seed: int, shape_seed: int, first: int = 0, n: int | None = None
    ) -> list[PlannedRequest]:
        return open_loop(self._draw(load, shape_seed).trace, 1.0, self._vocab_size, seed)

    def _draw(self, load: RequestRate, shape_seed: int) -> Fitted:
        """Draw the requests at a rate, and more for the few that --fit scale drops."""
        excess = 1.0
        n, seconds = self.loads.requests(load), self.loads.seconds
        while True:
            rate, count = load.req_per_s * excess, ceil(n * excess)
            trace = mixture_requests(self._mixture, rate, shape_seed, count, seconds)
            fitted = self._fit(trace)
            fitting = len(fitted.trace)
            if fitting == len(trace) or (excess > 1 and fitting >= n):
                in_time = int(np.searchsorted(fitted.trace.arrival_s, seconds, side="right"))
                return fitted.head(max(n, in_time))
            excess = max(excess + (1 / n if fitting < n else 0), len(trace) / fitting)

    def _sum(self, parts: list[TraceRecord]) -> TraceRecord:
        """Return the record of all loads together."""
        names = ("requests", "dropped", "changed", "input_tokens", "output_tokens")
        sums = {name: sum(getattr(part, name) for part in parts) for name in names}
        sums["dropped"] += round(sums["requests"] * self._mixture.dropped_each)
        note = "drawn from published statistics of clients, not recorded"
        return parts[0].model_copy(update=sums | {"citation": CITATION, "note": note})
