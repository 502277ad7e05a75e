"""Counters of a server's prefix cache, from its page for Prometheus (https://prometheus.io/docs/instrumenting/exposition_formats/)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.engines import server_pages
from harness.loadgen.load_plan import Target


@dataclass(frozen=True)
class PrefixCounters:
    """Names of two counters: prompt tokens taken from the prefix cache, and prompt tokens looked up in it."""

    hits: str
    queries: str

    @property
    def source(self) -> str:
        """The source named next to the figures."""
        return f"GET {server_pages.METRICS}: {self.hits}, {self.queries}"

    def read(self, target: Target) -> tuple[float, float] | None:
        """Both counters now, summed over all series; None if the server does not report them."""
        page = server_pages.get(target, server_pages.METRICS) or ""
        hits, queries = _total(page, self.hits), _total(page, self.queries)
        return None if hits is None or queries is None else (hits, queries)


def _total(page: str, name: str) -> float | None:
    values = re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)", page, re.MULTILINE)
    return sum(map(float, values)) if values else None
