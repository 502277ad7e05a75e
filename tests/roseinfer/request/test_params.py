"""Bounds of sampling parameters."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import msgspec
import numpy as np
import pytest

from roseinfer.request.params import SAMPLING, RequestError, SamplingParams


@pytest.mark.parametrize(
    "params",
    [
        {"max_tokens": 0}, {"min_tokens": 3}, {"temperature": -1}, {"temperature": inf}, {"temperature": nan},
        {"top_p": 0}, {"top_p": nan}, {"top_k": -1}, {"seed": -1}, {"seed": 2**64}, {"logprobs": 21},
        {"max_tokens": 2.5}, {"top_k": 3.5}, {"logit_bias": {7: 1.0}},
        {"temperature": None}, {"temperature": "1"}, {"top_p": None}, {"stop_token_ids": 5},
        {"logit_bias": ((1, 2.0, 3),)}, {"logit_bias": (1,)}, {"logit_bias": ((1, "2"),)},
    ],
)  # fmt: skip
def test_parameters_out_of_range(params: dict[str, Any]) -> None:
    """Refused when made here, and when they arrive as a message."""
    with pytest.raises(RequestError) as caught:
        SamplingParams(**({"max_tokens": 2} | params))
    assert caught.value.field == next(iter(params))
    with pytest.raises(RequestError):
        msgspec.json.decode(b"[2, 0, -1]", type=SamplingParams)


def test_a_row_of_sampling_has_the_parameters_of_a_request() -> None:
    params = SamplingParams(1, temperature=0.5, top_k=7, top_p=0.25, min_p=0.125, seed=2**64 - 1)
    row = np.array(params.sampling_row, SAMPLING)
    assert {name: row[name].item() for name in SAMPLING.names} == {
        "temperature": 0.5, "top_k": 7, "top_p": 0.25, "min_p": 0.125, "seed": 2**64 - 1,
    }  # fmt: skip
