"""Both ways to write a service level."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from harness.schema.limits import Slo
from harness.schema.online_settings import OnlineSettings


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("ttft_ms=200,tpot_ms=30", {"ttft_ms": 200, "tpot_ms": 30}),
        ("ttft_p99<=200ms,tpot_p99<=30ms", {"ttft_ms": 200, "tpot_ms": 30}),
        ("ttft_p99<=0.2s, tpot_ms=30", {"ttft_ms": 200, "tpot_ms": 30}),
        ("ttft_ms=2e2,tpot_p99<=3E-2s", {"ttft_ms": 200, "tpot_ms": 30}),
    ],
)
def test_both_forms_limit_each_request(text: str, limits: dict[str, float]) -> None:
    given = OnlineSettings.model_validate({"engines": "vllm", "slo": text})
    assert given.slo == Slo.model_validate(limits)


@pytest.mark.parametrize(
    "text", ["ttft_p50<=200ms", "output_tok_per_s>=5", "error_rate<=1%", "ttft_p99<=+5%", "session_p99<=9s"]
)
def test_what_limits_no_request_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match=r"no limit on a request|there is no session_ms to limit"):
        OnlineSettings.model_validate({"engines": "vllm", "slo": text})


@pytest.mark.parametrize("text", ["ttft_ms=200, ttft_ms=200", "ttft_p99<=300ms,ttft_ms=200"])
def test_one_limit_for_each_metric(text: str) -> None:
    with pytest.raises(ValidationError, match="given twice: ttft_ms"):
        Slo.model_validate(text)


def test_an_unknown_statistic_names_those_that_there_are() -> None:
    with pytest.raises(ValidationError, match="there is no statistic 'latency_p99'; known: ttft_p99"):
        Slo.model_validate("latency_p99<=200ms")
    with pytest.raises(ValidationError, match="'ttfp_p99'; did you mean ttft_p99"):
        Slo.model_validate("ttfp_p99<=200ms")
