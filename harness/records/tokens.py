"""How many tokens each chunk carries. The server's word is taken; its text is never tokenized here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.records.stream import Stream, StreamChunk

TokenSource = Literal["token_ids", "continuous_usage", "final_usage"]


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Chunks that carry tokens as (time, tokens), and where the numbers come from (None: from nowhere)."""

    source: TokenSource | None
    chunks: list[tuple[float, int]]
    total: int


def count_tokens(stream: Stream) -> TokenCount:
    """Count by token ids in chunks, else by usage in every chunk, else spread the final usage over text."""
    chunks = stream.chunks
    source: TokenSource | None
    if any(chunk.token_ids for chunk in chunks):
        source, counts = "token_ids", [chunk.token_ids or 0 for chunk in chunks]
    elif _continuous(chunks):
        source, counts = "continuous_usage", _steps([chunk.reported for chunk in chunks])
    elif stream.completion_tokens is not None:
        source, counts = "final_usage", spread(stream.completion_tokens, [chunk.text for chunk in chunks])
    else:
        return TokenCount(None, [], 0)
    carrying = [(chunk.t, tokens) for chunk, tokens in zip(chunks, counts, strict=True) if tokens > 0]
    return TokenCount(source, carrying, sum(tokens for _, tokens in carrying))


def spread(total: int, text: Sequence[int]) -> list[int]:
    """Deal `total` tokens over chunks by their text length, so that the sum is `total`.

    Chunks without text get none. With as many tokens as chunks with text, or more, each of these gets one and
    the rest goes by length; with fewer, they are dealt evenly and the first chunk has one.
    """
    holders = [i for i, length in enumerate(text) if length > 0]
    counts = [0] * len(text)
    rest = total - len(holders)
    weights = [text[i] for i in holders]
    if rest < 0:
        rest, weights = total, [1] * len(holders)
    else:
        for i in holders:
            counts[i] = 1
    length, before, dealt = sum(weights), 0, 0
    for i, weight in zip(holders, weights, strict=True):
        before += weight
        share = -(-before * rest // length)  # rounded up: the first chunk comes first
        counts[i] += share - dealt
        dealt = share
    return counts


def _continuous(chunks: Sequence[StreamChunk]) -> bool:
    """Whether every chunk with text says how many tokens there were up to it."""
    told = [chunk.reported is not None for chunk in chunks if chunk.text > 0]
    return bool(told) and all(told)


def _steps(totals: Sequence[int | None]) -> list[int]:
    """From totals so far to what each chunk added."""
    steps, before = [], 0
    for total in totals:
        now = before if total is None else max(before, total)
        steps.append(now - before)
        before = now
    return steps
