"""Logprobs of the tokens of a step, for the rows that ask for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from roseinfer.batch import Batch, Ints
from roseinfer.request.logprobs import StepLogprobs
from roseinfer.scheduler.running import Running
from roseinfer.tensors import to_device

#: Rows of a prompt whose logits are there at once.
PROMPT_ROWS = 256


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
class PromptAsked:
    """Tokens of prompts whose logprobs are asked for: rows `[P]` of the batch whose logits are theirs, the
    tokens `[P]`, their requests' ids and positions `[P]`, and the most of the likeliest that any wants."""

    rows: Ints
    tokens: Ints
    ids: Ints
    positions: Ints
    most: int


def prompts_asked(batch: Batch, running: Running) -> PromptAsked | None:
    """None when no prompt of the batch asks."""
    parts = []
    most = 0
    for segment in batch.segments:
        request = running.request(segment.request)
        if request.params.prompt_logprobs is not None:
            end = min(segment.context + segment.count, len(request.prompt) - 1)
            positions = np.arange(segment.context, end) + 1
            rows = segment.start - segment.context + positions - 1
            parts.append((rows, request.prompt[positions], np.full(len(rows), request.id), positions))
            most = max(most, request.params.prompt_logprobs)
    if not parts:
        return None
    rows, tokens, ids, positions = (
        np.concatenate(part).astype(np.int64) for part in zip(*parts, strict=True)
    )
    return PromptAsked(rows, tokens, ids, positions, most)


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


def prompt_logits(
    hidden: Tensor, logits_of: Callable[[Tensor], Tensor], rows: Ints
) -> Iterator[tuple[slice, Tensor]]:
    """Logits of `rows` `[P]` of hidden states `[T, width]`, PROMPT_ROWS at once, each part with its slice of
    `rows`."""
    for start in range(0, len(rows), PROMPT_ROWS):
        some = slice(start, start + PROMPT_ROWS)
        yield some, logits_of(hidden[to_device(rows[some], hidden.device)])


def prompt_logprobs(
    hidden: Tensor, logits_of: Callable[[Tensor], Tensor], asked: PromptAsked | None
) -> tuple[DeviceLogprobs, ...]:
    """Those of prompts, from hidden states `[T, width]` of the batch; a part for every PROMPT_ROWS rows."""
    if asked is None:
        return ()
    return tuple(
        logprobs(logits, to_device(asked.tokens[some], hidden.device), asked.most)
        for some, logits in prompt_logits(hidden, logits_of, asked.rows)
    )


def collect(asked: Asked | PromptAsked, parts: Sequence[DeviceLogprobs]) -> StepLogprobs | None:
    """The logprobs in `parts` of a step, in the order of its rows; waits for the device."""
    if not len(asked.ids):
        return None
    tokens, values = torch.cat([p.tokens for p in parts]), torch.cat([p.values for p in parts])
    positions = asked.positions if isinstance(asked, PromptAsked) else None
    return StepLogprobs(asked.ids, tokens.int().cpu().numpy(), values.cpu().numpy(), positions)
