"""What two engines are compared by first: the few comparisons that keep most of the level of all."""

from __future__ import annotations

from harness.schema.load import Batch, ClosedLoop, Load

#: What engines are compared by; the rate only where they set the pace: with requests in flight, or a batch.
LATENCIES = ("ttft_ms", "tpot_ms")
RATE = "output_tok_per_s"
#: Of a latency: p50 varies least from repeat to repeat, so a difference shows in it first.
STATISTIC = "p50"
#: Of the level, divided among the primary comparisons; the others have the rest.
SHARE = 0.8


def compared_by(load: Load) -> tuple[str, ...]:
    """The metrics by which engines are compared at a load."""
    if isinstance(load, Batch):
        return (RATE,)
    return (*LATENCIES, RATE) if isinstance(load, ClosedLoop) else LATENCIES


def is_primary(load: Load, metric: str, statistic: str) -> bool:
    """Whether a comparison of that statistic is one of the primary ones."""
    return metric in compared_by(load) and statistic in (STATISTIC, metric)
