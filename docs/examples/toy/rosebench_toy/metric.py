"""A latency, the time to the second token, and a rate, the prompt tokens a second."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harness.schema.metric import MS, Metric, Times


def time_to_second_token(times: Times) -> npt.NDArray[np.float64]:
    """(U,) in ms, for requests whose first two chunks carry a token each; NaN for others."""
    request, first_gap = np.unique(times.gap_request, return_index=True)
    gap_ms = np.full(len(times.first), np.nan)
    gap_ms[request] = times.gap_ms[first_gap]
    return (times.first - times.sent) * MS + gap_ms


TTST = Metric(
    name="ttst_ms",
    label="TTST",
    title="time to second token",
    unit="ms",
    formula="t_2 − t_sent",
    meaning="From the last byte of the request written to the second chunk that carries a token.",
    sample="request",
    of=time_to_second_token,
    uses=frozenset({"tables", "overview", "compared", "gated", "slo"}),
)

PROMPT_RATE = Metric(
    name="prompt_tok_per_s",
    label="prompt tok/s",
    title="prompt token rate",
    unit="tok/s",
    formula="prompt tokens / duration",
    meaning="Prompt tokens of successful requests a second.",
    sample="cell",
    of=lambda times: times.prompt_tokens,
    fraction=lambda counts: (counts.sums["prompt_tok_per_s"], counts.seconds),
    lower_is_better=False,
    set_by_load=True,
    uses=frozenset({"tables", "compared", "gated"}),
)
