"""How many drafted tokens an engine accepted, from its counters for Prometheus."""

from __future__ import annotations

import math

from harness.engines.prometheus import METRICS, Samples
from harness.schema.speculation import SpeculationCount

_DRAFTS = "vllm:spec_decode_num_drafts_total"
_DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
_BY_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
#: SGLang counts verifications and generated tokens; of drafted tokens it has only the latest share accepted.
_VERIFIED, _GENERATED = "sglang:spec_verify_calls_total", "sglang:generation_tokens_total"
_LATEST_SHARE = "sglang:spec_accept_rate"


def speculation(before: Samples, after: Samples) -> SpeculationCount | None:
    """What vLLM's or SGLang's counters rose by between two moments; None where nothing was drafted, or one of
    them fell: the server was started again, or another one answered."""
    before, after = ([s for s in samples if math.isfinite(s.value)] for samples in (before, after))
    return _vllm(before, after) or _sglang(before, after)


def _vllm(before: Samples, after: Samples) -> SpeculationCount | None:
    drafts = _rise(_DRAFTS, before, after)
    drafted, accepted = _rise(_DRAFTED, before, after), _rise(_ACCEPTED, before, after)
    named = {s.labels.get("position", "") for s in (*before, *after) if s.name == _BY_POSITION}
    places = sorted((place for place in named if place.isdecimal()), key=int)
    by_position = [_rise(_BY_POSITION, before, after, position=place) for place in places]
    if drafts <= 0 or min(drafted, accepted, *by_position) < 0:
        return None
    return SpeculationCount(
        steps=drafts,
        tokens_per_step=1 + accepted / drafts,
        accepted=accepted / drafted if drafted else None,
        by_position=[rise / drafts for rise in by_position],
        source=f"GET {METRICS}: {_DRAFTS.removesuffix('_drafts_total')}_…",
    )


def _sglang(before: Samples, after: Samples) -> SpeculationCount | None:
    steps, generated = _rise(_VERIFIED, before, after), _rise(_GENERATED, before, after)
    if steps <= 0 or generated < 0:
        return None
    shares = [sample.value for sample in after if sample.name == _LATEST_SHARE]
    return SpeculationCount(
        steps=steps,
        tokens_per_step=generated / steps,
        accepted=sum(shares) / len(shares) if shares else None,
        source=f"GET {METRICS}: {_VERIFIED}, {_GENERATED}, {_LATEST_SHARE} (of the latest steps)",
    )


def _rise(name: str, before: Samples, after: Samples, **labels: str) -> float:
    """By how much a counter rose, over all its series with these labels."""
    start, end = (
        sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())
        for samples in (before, after)
    )
    return end - start
