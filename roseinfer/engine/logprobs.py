"""Logprobs of the tokens of a step, for the rows that ask for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from roseinfer.request.logprobs import StepLogprobs
from roseinfer.tensors import to_device

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Asked:
    """Who asks in a step: rows `[L]` of it, rising, their request ids `[L]`, and the most of the likeliest
    tokens that any of them wants."""

    rows: Ints
    ids: Ints
    most: int


def who_asks(wanted: Ints, ids: Ints) -> Asked | None:
    """None when no request asks. `wanted` `[R]` is how many of the likeliest tokens each of the requests
    `ids` `[R]` gets, -1 where it does not ask."""
    rows = np.flatnonzero(wanted >= 0)
    return Asked(rows, ids[rows], int(wanted.max())) if len(rows) else None


@dataclass(frozen=True)
class DeviceLogprobs:
    """As StepLogprobs, of some of the rows that ask: both `[l, 1 + k]`, int64 and float32."""

    tokens: Tensor
    values: Tensor


def logprobs(logits: Tensor, taken: Tensor, k: int) -> DeviceLogprobs:
    """Of tokens `[l]` that were taken, and of the `k` likeliest ones, for logits `[l, vocab]`.

    Of tokens with equal logits, the one that was taken comes first: it counts as the next larger number.
    """
    taken = taken[:, None]
    wide = logits.to(torch.float32, copy=True)
    own = wide.gather(-1, taken)
    own = torch.nextafter(own, torch.full_like(own, math.inf))
    top = wide.scatter_(-1, taken, own).topk(min(k, wide.shape[-1]), dim=-1)
    values = torch.cat((own, top.values), -1) - wide.logsumexp(-1, keepdim=True)
    return DeviceLogprobs(torch.cat((taken, top.indices), -1), values)


def asked_logprobs(
    logits: Tensor, taken: Tensor, asked: Asked | None, start: int = 0
) -> tuple[DeviceLogprobs, ...]:
    """The logprobs of a part of a step, for those of its rows that ask; empty when none does.

    Args:
        logits: `[≥ R, vocab]`, first those of the part's rows.
        taken: `[R]`, the tokens of the part's rows.
        start: which row of the step the part's first is.
    """
    if asked is None:
        return ()
    rows = asked.rows[(asked.rows >= start) & (asked.rows < start + len(taken))] - start
    if not len(rows):
        return ()
    where = to_device(rows, logits.device)
    return (logprobs(logits[where], taken[where], asked.most),)


def collect(asked: Asked, parts: Sequence[DeviceLogprobs]) -> StepLogprobs:
    """The logprobs in `parts` of a step, in the order of its rows; waits for the device."""
    tokens, values = torch.cat([p.tokens for p in parts]), torch.cat([p.values for p in parts])
    return StepLogprobs(asked.ids, tokens.int().cpu().numpy(), values.cpu().numpy())
