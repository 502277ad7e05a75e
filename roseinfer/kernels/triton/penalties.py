"""Penalties on tokens that a request has already. Reference: `Adjustments.apply` without `fused`.

Only logits of tokens that prompt and answer have are read and written. Occurrences are counted in a table
`[A, vocab]`; then each is looked up again, and whoever takes a token's count out of the table, which leaves 0
to the others, adjusts its logit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from roseinfer.batch import UNKNOWN

_BLOCK = 1024
#: Of a count: the prompt has the token. The bits below are its occurrences in the answer.
_IN_PROMPT = tl.constexpr(1 << 30)


@triton.jit(do_not_specialize=["count", "longest"])
def _occurrences(tokens_ptr, newest_ptr, places_ptr, counts_ptr, count, longest, vocab, UNREAD: tl.constexpr,
                 BLOCK: tl.constexpr):  # fmt: skip
    """A block's positions of one request: where their tokens' counts are, which of them it has, and which of
    these are its prompt's."""
    index = tl.program_id(0).to(tl.int64)
    position = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = position < tl.load(places_ptr + 2 * count + index)
    token = tl.load(tokens_ptr + index * longest + position, inside, 0).to(tl.int64)
    token = tl.where(token == UNREAD, tl.load(newest_ptr + index), token)
    is_prompt = position < tl.load(places_ptr + count + index)
    return index, token, counts_ptr + index * vocab + token, inside, is_prompt


@triton.jit(do_not_specialize=["count", "longest"])
def _count(tokens_ptr, newest_ptr, places_ptr, counts_ptr, count, longest, vocab, UNREAD: tl.constexpr,
           BLOCK: tl.constexpr):  # fmt: skip
    _, _, at, inside, is_prompt = _occurrences(
        tokens_ptr, newest_ptr, places_ptr, counts_ptr, count, longest, vocab, UNREAD, BLOCK
    )
    tl.atomic_or(at, _IN_PROMPT, inside & is_prompt, sem="relaxed")
    tl.atomic_add(at, 1, inside & (is_prompt == 0), sem="relaxed")


@triton.jit(do_not_specialize=["count", "longest"])
def _penalize(logits_ptr, tokens_ptr, newest_ptr, places_ptr, penalties_ptr, counts_ptr, count, longest,
              vocab, UNREAD: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    index, token, at, inside, _ = _occurrences(
        tokens_ptr, newest_ptr, places_ptr, counts_ptr, count, longest, vocab, UNREAD, BLOCK
    )
    count_of_token = tl.atomic_xchg(at, 0, inside, sem="relaxed")
    is_first = inside & (count_of_token != 0)
    generated = (count_of_token & (_IN_PROMPT - 1)).to(tl.float32)
    repetition = tl.load(penalties_ptr + index)
    frequency = tl.load(penalties_ptr + count + index)
    presence = tl.load(penalties_ptr + 2 * count + index)
    logit_at = logits_ptr + tl.load(places_ptr + index).to(tl.int64) * vocab + token
    logit = tl.load(logit_at, is_first, 0.0)
    logit = tl.where(logit > 0, logit / repetition, logit * repetition)
    tl.store(logit_at, logit - frequency * generated - tl.where(generated > 0, presence, 0.0), is_first)


def penalize(logits: Tensor, tokens: Tensor, newest: Tensor, places: Tensor, penalties: Tensor) -> None:
    """Apply the penalties of `A` requests to their rows of `logits` `[R, vocab]` float32, in place.

    Args:
        tokens: `[A, L]` int32, prompt and answer; UNKNOWN stands for the request's `newest` `[A]` int64.
        places: `[3, A]` int32: row of the logits, number of prompt tokens, number of all tokens.
        penalties: `[3, A]` float32: for repetition, frequency and presence.
    """
    (count, longest), vocab = tokens.shape, logits.shape[1]
    counts = torch.zeros(count, vocab, dtype=torch.int32, device=logits.device)
    grid = (count, triton.cdiv(longest, _BLOCK))
    sizes = (count, longest, vocab, UNKNOWN, _BLOCK)
    _count[grid](tokens, newest, places, counts, *sizes)
    _penalize[grid](logits, tokens, newest, places, penalties, counts, *sizes)
