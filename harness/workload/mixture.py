"""The requests of a mixture of clients: each client's own renewal process and lengths, added up."""

from __future__ import annotations

from math import ceil

import numpy as np
from numpy.typing import NDArray
from scipy import special

from harness.traces import sampling
from harness.traces.servegen import Mixture, TrafficClient
from harness.traces.trace import Trace

#: Streams of the seed that clients draw from; the lower ones are for what is not of a client.
FIRST_STREAM, STREAMS = 16, 3
#: Mean gaps that a client has been sending for when the load begins, so that clients do not begin together.
BEFORE = 20


def mixture_requests(mixture: Mixture, req_per_s: float, seed: int, n: int, seconds: float) -> Trace:
    """`n` requests, or as many as arrive in `seconds`, at `req_per_s` in all; each client keeps its share."""
    span = max(seconds, n / req_per_s)
    while True:
        parts = [
            _requests(client, client.req_per_s / mixture.req_per_s * req_per_s, span, seed, position)
            for position, client in enumerate(mixture.clients)
        ]
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        arrival, inputs, outputs = (column[order] for column in columns)
        if len(arrival) >= n and (not seconds or arrival[-1] - arrival[0] >= seconds):
            wanted = max(n, int(np.searchsorted(arrival - arrival[0], seconds, side="right")))
            return Trace.build(
                "mixture of clients", arrival[:wanted], inputs[:wanted], outputs[:wanted],
                origin=mixture.origin, sha256=mixture.sha256,
            )  # fmt: skip
        span *= 1.5


def _requests(
    client: TrafficClient, req_per_s: float, span: float, seed: int, position: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Times of one client from 0 to `span`, and the lengths of its requests."""
    stream = FIRST_STREAM + STREAMS * position
    before = BEFORE / req_per_s
    count = ceil((before + span) * req_per_s)
    while True:
        times = np.cumsum(_gaps(client, sampling.uniforms(count, seed, stream))) / req_per_s - before
        if times[-1] > span:
            break
        count *= 2
    kept = (times >= 0) & (times <= span)
    inputs, outputs = client.lengths(*(sampling.uniforms(count, seed, stream + i) for i in (1, 2)))
    return times[kept], inputs[kept], outputs[kept]


def _gaps(client: TrafficClient, uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Gaps of mean 1 with the client's distribution."""
    shape = client.shape
    if client.pattern == "Gamma":
        gaps: NDArray[np.float64] = special.gammaincinv(shape, uniforms) / shape
        return gaps
    weibull: NDArray[np.float64] = (-np.log1p(-uniforms)) ** (1 / shape) / special.gamma(1 + 1 / shape)
    return weibull
