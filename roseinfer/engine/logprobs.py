"""Logprobs of a step's sampled and prompt tokens, for the requests that ask for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from roseinfer.batch import Batch, Ints
from roseinfer.request.logprobs import StepLogprobs
from roseinfer.scheduler.running import Running
from roseinfer.tensors import to_device

#: Prompt rows whose logits are computed at once: this bounds their memory.
PROMPT_ROWS = 256


@dataclass(frozen=True)
class LogprobRows:
    """Rows `[L]` of a step that ask for logprobs, ascending, their request ids `[L]`, and the most top
    tokens that any of them asks for."""

    rows: Ints
    ids: Ints
    most: int


def logprob_rows(top_tokens: Ints, ids: Ints) -> LogprobRows | None:
    """Return the rows that ask for logprobs, or None. `top_tokens` `[R]`: the number of top tokens for which
    each of the requests `ids` `[R]` asks, -1 where it asks for no logprobs."""
    rows = np.flatnonzero(top_tokens >= 0)
    return LogprobRows(rows, ids[rows], int(top_tokens.max())) if len(rows) else None


@dataclass(frozen=True)
class PromptLogprobRows:
    """Prompt tokens whose logprobs are asked for: rows `[P]` of the batch whose logits predict them, the
    tokens `[P]`, their request ids and positions `[P]`, and the most top tokens that any request asks for."""

    rows: Ints
    tokens: Ints
    ids: Ints
    positions: Ints
    most: int


def prompt_logprob_rows(batch: Batch, running: Running) -> PromptLogprobRows | None:
    """None when no prompt of the batch asks. Marks the tokens as scored: after a preemption they are not
    asked for again."""
    parts = []
    most = 0
    for segment in batch.segments:
        request = running.request(segment.request)
        if request.params.prompt_logprobs is not None:
            end = min(segment.context + segment.count, len(request.prompt) - 1)
            positions = np.arange(max(segment.context, request.scored), end) + 1
            request.scored = max(request.scored, end)
            rows = segment.start - segment.context + positions - 1
            parts.append((rows, request.prompt[positions], np.full(len(rows), request.id), positions))
            most = max(most, request.params.prompt_logprobs)
    if not parts:
        return None
    rows, tokens, ids, positions = (
        np.concatenate(part).astype(np.int64) for part in zip(*parts, strict=True)
    )
    return PromptLogprobRows(rows, tokens, ids, positions, most)


@dataclass(frozen=True)
class DeviceLogprobs:
    """StepLogprobs of some of the rows that ask, on the device: both `[l, 1 + k]`, int64 and float32."""

    tokens: Tensor
    values: Tensor


def logprobs(logits: Tensor, sampled: Tensor, k: int) -> DeviceLogprobs:
    """Logprobs of the tokens `sampled` `[l]`, and of the `k` most likely ones, for logits `[l, vocab]`. They
    depend on no other row, and the first ones not on `k`.

    A taken token comes before others with an equal logit, and these by their ids.
    """
    sampled, vocab = sampled[:, None], logits.shape[-1]
    wide, tokens = logits.float(), sampled
    if k:
        # integers in the order of the floats; of equal ones the taken token first, then lower ids
        bits, lower_first = wide.view(torch.int32), torch.arange(vocab - 1, -1, -1, device=logits.device)
        order = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
        order.bitwise_left_shift_(32).add_(lower_first)
        order.scatter_(-1, sampled, order.gather(-1, sampled) | 0xFFFFFFFF)
        tokens = torch.cat((sampled, order.topk(min(k, vocab), dim=-1).indices), -1)
    # A sum of one row alone, as in logsumexp, would be split over the threads.
    return DeviceLogprobs(tokens, wide.log_softmax(-1).gather(-1, tokens))


def step_logprobs(
    logits: Tensor, sampled: Tensor, requested: LogprobRows | None, start: int = 0
) -> tuple[DeviceLogprobs, ...]:
    """The logprobs of part of a step, for those of its rows that ask; empty when none does.

    Args:
        logits: `[≥ R, vocab]`, the part's rows first.
        sampled: `[R]`, the tokens of the part's rows.
        start: the step's row at which the part begins.
    """
    if requested is None:
        return ()
    rows = requested.rows[(requested.rows >= start) & (requested.rows < start + len(sampled))] - start
    if not len(rows):
        return ()
    where = to_device(rows, logits.device)
    return (logprobs(logits[where], sampled[where], requested.most),)


def prompt_logits(
    hidden: Tensor, logits_of: Callable[[Tensor], Tensor], rows: Ints
) -> Iterator[tuple[slice, Tensor]]:
    """Logits of `rows` `[P]` of hidden states `[T, width]`, PROMPT_ROWS at a time, each with its slice of
    `rows`."""
    for start in range(0, len(rows), PROMPT_ROWS):
        some = slice(start, start + PROMPT_ROWS)
        yield some, logits_of(hidden[to_device(rows[some], hidden.device)])


def prompt_logprobs(
    hidden: Tensor, logits_of: Callable[[Tensor], Tensor], requested: PromptLogprobRows | None
) -> tuple[DeviceLogprobs, ...]:
    """Logprobs of prompt tokens, from the batch's hidden states `[T, width]`, PROMPT_ROWS rows a part."""
    if requested is None:
        return ()
    return tuple(
        logprobs(logits, to_device(requested.tokens[some], hidden.device), requested.most)
        for some, logits in prompt_logits(hidden, logits_of, requested.rows)
    )


def collect(
    requested: LogprobRows | PromptLogprobRows, parts: Sequence[DeviceLogprobs]
) -> StepLogprobs | None:
    """The logprobs of all `parts` of a step, in the order of its rows. Waits for the device."""
    if not len(requested.ids):
        return None
    tokens, values = torch.cat([p.tokens for p in parts]), torch.cat([p.values for p in parts])
    positions = requested.positions if isinstance(requested, PromptLogprobRows) else None
    return StepLogprobs(requested.ids, tokens.int().cpu().numpy(), values.cpu().numpy(), positions)
