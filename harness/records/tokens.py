"""When tokens came: how many tokens each chunk carries, and how that is known.

The rules are those of docs/metrics.md, "Which chunk carries a token". A server's counts are believed only
where they move together with its text; otherwise tokens are distributed over the chunks with text, and the
source says `inferred`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.records.stream import Stream, StreamChunk

TokenSource = Literal["token_ids", "continuous_usage", "final_usage", "inferred"]

#: A chunk with text carries at least one token, but for so many: text that was held back comes at the end.
FLUSHED_CHUNKS = 1

#: A count without token ids is refused where it and the tokens of the text, by the model's tokenizer, differ
#: by more than this factor and by more than TEXT_SLACK: text does not tell exactly how it was split.
TEXT_FACTOR = 1.5
TEXT_SLACK = 4

#: The longest part of an answer, in characters, that is looked for when an answer repeats itself, and how
#: many characters at least have to be those before them.
LONGEST_CYCLE, SHORTEST_REPEAT = 256, 16

#: In the text of an answer, what ends a model's reasoning.
END_OF_THOUGHT = "</think>"
#: No answer has more characters for each of its tokens, in the mean.
LONGEST_TOKENS = 16

#: What stands for bytes that are no character: a server may send several for one token.
REPLACEMENT = "\ufffd"


@dataclass(frozen=True, slots=True)
class TokenCount:
    """When tokens came, as (time, tokens), ascending, and how the counts are known (None: not at all).

    `problem` says why the counts cannot be right; `total` is then what the server claims. `hidden` is how
    many tokens of reasoning the server counts beside `total` and does not send.
    """

    source: TokenSource | None
    chunks: list[tuple[float, int]]
    total: int
    problem: str | None = None
    hidden: int = 0


def count_tokens(stream: Stream, tokens_of: Callable[[str], int] | None = None) -> TokenCount:
    """Count by token ids, else by usage in every chunk, else by the final usage, over the chunks with text.

    Token ids count where every chunk with text has its own; usage in every chunk where each chunk with text
    raises it. The final usage is exact where it has one token for each chunk with text, and `inferred` where
    it has to be distributed by the length of the text.

    Args:
        tokens_of: Tokens of a text by the model's tokenizer; checks every count that has no token ids.
    """
    chunks = stream.chunks
    source: TokenSource
    tokens_of = None if stream.calls_tools else tokens_of
    hidden = _hidden(stream, tokens_of)
    claimed = None if stream.completion_tokens is None else stream.completion_tokens - hidden
    if _has_own_ids(chunks):
        source, counts = "token_ids", [chunk.token_ids or 0 for chunk in chunks]
    elif (steps := _usage_steps(chunks, hidden)) is not None:
        source, counts = "continuous_usage", steps
    else:
        total = claimed if claimed is not None else sum(chunk.token_ids or 0 for chunk in chunks)
        if not total:
            return TokenCount(None, [], 0, hidden=hidden)
        lengths = [chunk.text for chunk in chunks]
        if (end := _end_token(stream, total)) is not None:
            lengths[end] = 1
        source = "final_usage" if total == sum(length > 0 for length in lengths) else "inferred"
        counts = distribute(total, lengths)
    events = [(chunk.t, tokens) for chunk, tokens in zip(chunks, counts, strict=True) if tokens > 0]
    problem = None if source == "token_ids" else _problem(stream, counts, tokens_of)
    return TokenCount(source, _by_stamp(events), sum(counts), problem, hidden)


def distribute(total: int, text: Sequence[int]) -> list[int]:
    """Distribute `total` tokens over chunks by their text length, so that the sum is `total`.

    Chunks without text get none. With as many tokens as chunks with text, or more, each of these gets one and
    the rest goes by length; with fewer, they are distributed evenly and the first chunk has one.
    """
    holders = [i for i, length in enumerate(text) if length > 0]
    least = 1 if total >= len(holders) else 0
    weights = [text[i] if least else 1 for i in holders]
    rest, length = total - least * len(holders), sum(weights)
    shares = [-(-part * rest // length) for part in accumulate(weights)]  # rounded up: the first chunk first
    counts = [0] * len(text)
    for i, (before, until) in zip(holders, pairwise([0, *shares]), strict=True):
        counts[i] = least + until - before
    return counts


def answer_began(stream: Stream, chunks: Sequence[tuple[float, int]]) -> float | None:
    """When the first token came that is not reasoning; None where all of them are.

    Where no reasoning came before it, that is the first token of `chunks`. After reasoning it is the first
    chunk with text of the answer: a token without text does not say what it belongs to.
    """
    with_text = (chunk for chunk in stream.chunks if chunk.text)
    first = next(with_text, None)
    if first is None or first.answer:
        return chunks[0][0] if chunks else None
    return next((chunk.t for chunk in with_text if chunk.answer), None)


def _hidden(stream: Stream, tokens_of: Callable[[str], int] | None) -> int:
    """Tokens of reasoning that the usage counts and no chunk has.

    0 where the stream shows them: as reasoning, or in the text of the answer, which then has more chunks, ids
    or tokens than are left without them.
    """
    hidden, claimed = stream.reasoning_tokens or 0, stream.completion_tokens or 0
    left, with_text = claimed - hidden, [chunk for chunk in stream.chunks if chunk.text]
    if not hidden or left < bool(with_text) or len(with_text) > left + FLUSHED_CHUNKS:
        return 0
    text, first = "".join(stream.text), with_text[0].reported if with_text else None
    shown = (
        any(chunk.text > chunk.answer for chunk in with_text)
        or END_OF_THOUGHT in text
        or len(text) > LONGEST_TOKENS * left
        or sum(chunk.token_ids or 0 for chunk in stream.chunks) > left
        or (first is not None and first <= hidden)
    )
    counted = left if tokens_of is None else tokens_of(text)
    return 0 if shown or abs(counted - claimed) < abs(counted - left) else hidden


def _end_token(stream: Stream, total: int) -> int | None:
    """The chunk of a last token that the usage counts and no text shows: the one without text that ends the
    answer, where there is one token more than chunks with text. An end token says `stop`; the only token of
    an answer may also be half a character, or one that text leaves out, and `length` ends the answer."""
    with_text = sum(chunk.text > 0 for chunk in stream.chunks)
    if total != with_text + 1 or (stream.finish_reason != "stop" and (with_text or stream.reasoning_tokens)):
        return None
    ends = (i for i, chunk in enumerate(stream.chunks) if chunk.ends and not chunk.text)
    return next(ends, None)


def _has_own_ids(chunks: Sequence[StreamChunk]) -> bool:
    """Return True if there are token ids, and no chunk has text without any."""
    return any(chunk.token_ids for chunk in chunks) and all(chunk.token_ids for chunk in chunks if chunk.text)


def _usage_steps(chunks: Sequence[StreamChunk], hidden: int) -> list[int] | None:
    """Return what each chunk adds to the usage beyond `hidden` tokens; None unless every chunk with text adds
    something.

    Usage before the first text shows no token: what it adds counts with the next text. Where no chunk has
    text, each that does not name the role has to add one token: halves of characters, or tokens that text
    leaves out.
    """
    silent = not any(chunk.text for chunk in chunks)
    steps, before, seen_text = [], hidden, silent and bool(chunks)
    for chunk in chunks:
        seen_text = seen_text or chunk.text > 0
        step = 0 if chunk.reported is None else chunk.reported - before
        if (chunk.text > 0 and step <= 0) or (silent and not chunk.role and step != 1):
            return None
        if not seen_text or (silent and chunk.role):
            step = 0
        step = max(0, step)
        before += step
        steps.append(step)
    return steps if seen_text else None


def _by_stamp(events: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """Chunks that arrived at the same moment are one: how a server cuts its bytes makes no difference."""
    merged: list[tuple[float, int]] = []
    for t, tokens in events:
        if merged and merged[-1][0] == t:
            tokens += merged.pop()[1]
        merged.append((t, tokens))
    return merged


def _problem(stream: Stream, counts: Sequence[int], tokens_of: Callable[[str], int] | None) -> str | None:
    """Return why the server's counts, one for each chunk, do not fit the text that it sent."""
    total = sum(counts)
    with_text = len(stream.text)
    if total < with_text - FLUSHED_CHUNKS:
        return f"{with_text} chunks with text, and only {total} tokens by the server's usage"
    if tokens_of is None or not with_text:
        return None
    counted = _tokens_in(stream.text, total, tokens_of)
    if _differ(total, counted):
        parts, kept = _without_cycle(stream, counts)
        if _differ(kept, _tokens_in(parts, kept, tokens_of)):
            return f"{total} tokens by the server's usage, {counted} by the model's tokenizer in its text"
    return None


def _differ(total: int, counted: int) -> bool:
    low, high = sorted((counted, total))
    return high > TEXT_FACTOR * low and high - low > TEXT_SLACK


def _tokens_in(parts: Sequence[str], total: int, tokens_of: Callable[[str], int]) -> int:
    """Tokens that the model's tokenizer finds in the text of an answer: `total` where it finds more, but
    not in every way of looking. Mid-word tokens in a row are one long word, which it may split far more.

    Ways of looking that cannot make it differ any more are left out.
    """
    text = "".join(parts)
    counted = tokens_of(text)
    if counted <= total or (REPLACEMENT not in text and not _differ(total, counted)):
        return counted
    parts = [part.replace(REPLACEMENT, "") for part in parts]
    counted = max(total, sum(map(tokens_of, parts)))
    if _differ(total, counted):
        counted = max(total, min(counted, tokens_of("".join(parts))))
    return counted


def _without_cycle(stream: Stream, counts: Sequence[int]) -> tuple[list[str], int]:
    """Text and tokens of an answer but for where it repeats itself: `EZEZEZ` of 64 tokens becomes 32 when it
    is read again, and says nothing about the count.

    Returns:
        The text of each chunk that begins elsewhere, and the sum of their counts.
    """
    repeats = _repeats("".join(stream.text))
    begins = accumulate((chunk.text for chunk in stream.chunks), initial=0)
    kept = sum(
        tokens
        for tokens, begin in zip(counts, begins, strict=False)
        if begin >= repeats.size or not repeats[begin]
    )
    begins = accumulate(map(len, stream.text), initial=0)
    return [part for part, begin in zip(stream.text, begins, strict=False) if not repeats[begin]], kept


def _repeats(text: str) -> NDArray[np.bool_]:
    """(len(text),) which characters only say again what came before them: a cycle but its first round."""
    codes = np.array([ord(character) for character in text], dtype=np.int32)
    repeated = np.zeros(codes.size, dtype=bool)
    for size in range(1, min(LONGEST_CYCLE, codes.size - 1) + 1):
        same = codes[size:] == codes[:-size]
        edges = np.flatnonzero(np.diff(same, prepend=False, append=False))
        for start, stop in zip(edges[::2], edges[1::2], strict=True):
            if stop - start >= max(size, SHORTEST_REPEAT):
                repeated[start + size : stop + size] = True
    return repeated
