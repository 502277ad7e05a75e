"""Bounds of sampling parameters, prompts and token ids."""

from __future__ import annotations

import re
from math import inf, nan
from typing import Any

import msgspec
import numpy as np
import pytest

from roseinfer.request.limits import Limits
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


LIMITS = Limits(vocab_size=5003, max_model_len=1024, kv_tokens=512)


@pytest.mark.parametrize(
    ("prompt", "max_tokens"),
    [([], 1), ([1] * 1000, 100), ([1] * 400, 200), ([5003], 1), ([-1], 1)],  # the third fits no cache
)
def test_a_prompt_that_does_not_fit(prompt: list[int], max_tokens: int) -> None:
    with pytest.raises(RequestError):
        LIMITS.check(np.array(prompt, np.int32), max_tokens)


@pytest.mark.parametrize(
    "token", [5003, -1, 2**31, -(2**31) - 1, 2**32, 2**63, 10**30, 1.5, "a", None, np.int64(2**40)]
)
def test_an_id_that_is_no_token_is_named(token: Any) -> None:
    with pytest.raises(ValueError, match=f"no token {re.escape(str(token))} .* of 5,003 tokens"):
        LIMITS.token_ids([1, token])


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint16])
def test_ids_as_an_array(kind: Any) -> None:
    prompt: Any = np.array([5, 6, 7], dtype=kind)
    assert LIMITS.token_ids(prompt).tolist() == [5, 6, 7]


@pytest.mark.parametrize("prompt", ["hi", None, 7])
def test_a_prompt_that_is_no_list(prompt: Any) -> None:
    with pytest.raises(RequestError, match="a prompt is a list of token ids"):
        LIMITS.token_ids(prompt)


@pytest.mark.parametrize(
    "params", [{"stop_token_ids": (1.5,)}, {"logit_bias": ((1.5, 2.0),)}, {"logit_bias": (("1", 2.0),)}]
)
def test_named_tokens_that_are_no_ids(params: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="token ids must be whole numbers from 0 to 5002"):
        LIMITS.check_ids(SamplingParams(2, **params))
