"""When tokens came: how many tokens each chunk carries, and how that is known.

The rules are those of docs/metrics.md, "Which chunk carries a token" and "Chunks that are one". A server's
counts are believed only where they move together with its text; otherwise tokens are distributed over the
chunks with text, and the source says `inferred`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.records.stream import Stream, StreamChunk

TokenSource = Literal["token_ids", "continuous_usage", "final_usage", "inferred", "estimated"]

#: A chunk with text carries at least one token, but for so many: text that was held back comes at the end.
FLUSHED_CHUNKS = 1
#: A text before the answer of this alone is no token of the model where there is a chunk too many: what keeps
#: a connection alive, or what a server writes in front of reasoning.
_BLANK = re.compile(r"[\s\u200b\u2060\ufeff]*(?:<think>\s*)?")

#: Chunks that are nearer to each other than NEAR_S and NEAR_SHARE of the answer's mean gap are one, where
#: half of these gaps are below WRITE_S, as servers write so fast and no known engine generates so fast, or
#: where longer gaps are at least STEP_SHARE of all: an engine's steps, where a few would be pauses.
NEAR_S, NEAR_SHARE, WRITE_S, STEP_SHARE = 1e-3, 0.1, 1e-4, 0.1

#: A count without token ids is refused where it and the tokens of the text, by the model's tokenizer, differ
#: by more than this factor and by more than TEXT_SLACK: text does not tell exactly how it was split.
TEXT_FACTOR = 1.5
TEXT_SLACK = 4
#: By how much they may differ over a cell, and of how many tokens at least an answer is compared.
CELL_FACTOR, LEAST_COMPARED = 1.15, 16

#: The longest part of an answer, in characters, that is looked for when an answer repeats itself, and how
#: many characters at least have to be those before them.
LONGEST_CYCLE, SHORTEST_REPEAT = 256, TEXT_SLACK + 1

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
    many tokens of reasoning the server counts beside `total` and does not send. `text_tokens` is how many the
    model's tokenizer finds in the text, of as much of it as can be compared; None: that is not known.
    """

    source: TokenSource | None
    chunks: list[tuple[float, int]]
    total: int
    problem: str | None = None
    hidden: int = 0
    text_tokens: int | None = None


def count_tokens(
    stream: Stream,
    tokens_of: Callable[[str], int] | None = None,
    t_sent: float | None = None,
    limit: int | None = None,
) -> TokenCount:
    """Count by token ids, else by usage in every chunk, else by the final usage, over the chunks with text;
    where there is none of these, by the model's tokenizer.

    A chunk with text and without a count of its own, beside chunks that have one, is no token. The final
    usage is exact where it has one token for each chunk with text, and `inferred` where it has to be
    distributed by the length of the text. The last chunk with text always carries a token: an answer ends
    with its text.

    Args:
        tokens_of: Tokens of a text by the model's tokenizer; checks every count that has no token ids, and
            estimates it where there is none.
        t_sent: When the request was sent; tells an answer that came at once from one that was generated fast.
        limit: Tokens that the answer must have; an estimate that is near is so many, if it ends at its limit.
    """
    chunks = stream.chunks
    source: TokenSource
    tokens_of_answer = None if stream.calls_tools else tokens_of
    hidden = _hidden(stream, tokens_of_answer)
    claimed = None if stream.completion_tokens is None else stream.completion_tokens - hidden
    text = _text_of_tokens(stream, claimed)
    ids = [chunk.token_ids or 0 for chunk in chunks]
    if _tell_all(ids, text, claimed):
        source, counts = "token_ids", ids
    elif (steps := _usage_steps(chunks, text, hidden, claimed)) is not None:
        source, counts = "continuous_usage", steps
    else:
        total = claimed if claimed is not None else sum(ids)
        if is_estimated := claimed is None and not total and bool(stream.text) and tokens_of is not None:
            total = tokens_of("".join(stream.text))
            if limit is not None and stream.finish_reason == "length" and not _differ(limit, total):
                total = limit
        if not total:
            return TokenCount(None, [], 0, hidden=hidden)
        counts, is_exact = _distribute_over_text(stream, text, total)
        source = "estimated" if is_estimated else "final_usage" if is_exact else "inferred"
    _give_last_text_a_token(chunks, counts)
    events = [(chunk.t, tokens) for chunk, tokens in zip(chunks, counts, strict=True) if tokens > 0]
    problem, text_tokens = None, None
    if source not in ("token_ids", "estimated"):
        problem, text_tokens = _compare(stream, text, counts, tokens_of_answer)
    return TokenCount(source, join_near(events, t_sent), sum(counts), problem, hidden, text_tokens)


def _distribute_over_text(stream: Stream, text: list[int], total: int) -> tuple[list[int], bool]:
    """Return the tokens of each chunk, and whether each chunk with text has one. `text`, the characters of
    each, loses those that carry no token and gains an end token's."""
    if (end := _end_token(stream, text, total)) is not None:
        text[end] = 1
    holders = [i for i, length in enumerate(text) if length]
    if len(holders) == total + FLUSHED_CHUNKS and total > 1:
        text[holders[-2]] = 0
    return distribute(total, text), total == len(holders)


def _give_last_text_a_token(chunks: Sequence[StreamChunk], counts: list[int]) -> None:
    """Move a token to the last chunk with text, if neither it nor a later one has any."""
    last = max((i for i, chunk in enumerate(chunks) if chunk.text), default=0)
    if sum(counts) > 1 and chunks[last].text and not any(counts[last:]):
        counts[max(i for i in range(last) if counts[i])] -= 1
        counts[last] = 1


def distribute(total: int, text: Sequence[int]) -> list[int]:
    """Distribute `total` tokens over chunks by their text length, so that the sum is `total`.

    Chunks without text get none. With as many tokens as chunks with text, or more, each of these gets one and
    the rest goes by length; with fewer, they are distributed evenly and the first chunk has one.
    """
    holders = [i for i, length in enumerate(text) if length > 0]
    least = 1 if total >= len(holders) else 0
    weights = [text[i] if least else 1 for i in holders]
    rest, length = total - least * len(holders), sum(weights)
    up = length // 2 if least else length - 1  # to the nearest; or the first chunk first
    shares = [(part * rest + up) // length for part in accumulate(weights)]
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


def _text_of_tokens(stream: Stream, claimed: int | None) -> list[int]:
    """Return the characters of each chunk, 0 for those that a server wrote before the model's first token.

    These are blank, name the role or begin reasoning, have no ids, and are as many as there are more chunks
    with text than tokens.
    """
    text = [chunk.text for chunk in stream.chunks]
    holders = [i for i, length in enumerate(text) if length]
    surplus = len(holders) - (len(holders) if claimed is None else claimed)
    leading = holders[: max(0, surplus)]
    if claimed and all(
        (stream.chunks[i].role or _BLANK.fullmatch(part)) and not stream.chunks[i].token_ids
        for i, part in zip(leading, stream.text, strict=False)
    ):
        for i in leading:
            text[i] = 0
    return text


def _end_token(stream: Stream, text: Sequence[int], total: int) -> int | None:
    """The chunk of a last token that the usage counts and no text shows: the one without text that ends the
    answer, where there is one token more than chunks with text. An end token says `stop`; the only token of
    an answer may also be half a character, or one that text leaves out, and `length` ends the answer."""
    with_text = sum(length > 0 for length in text)
    if total != with_text + 1 or (stream.finish_reason != "stop" and (with_text or stream.reasoning_tokens)):
        return None
    ends = (i for i, chunk in enumerate(stream.chunks) if chunk.ends and not chunk.text)
    return next(ends, None)


def _tell_all(counts: Sequence[int], text: Sequence[int], claimed: int | None) -> bool:
    """Return True if counts of single chunks say what each carries: every chunk with text has one, or most
    have and the sum is what the server claims."""
    with_text = sum(length > 0 for length in text)
    bare = sum(length > 0 and not count for length, count in zip(text, counts, strict=True))
    if not any(counts):
        return False
    return not bare or (2 * bare < with_text and claimed in (None, sum(counts)))


def _usage_steps(
    chunks: Sequence[StreamChunk], text: Sequence[int], hidden: int, claimed: int | None
) -> list[int] | None:
    """Return what each chunk adds to the usage beyond `hidden` tokens; None unless that is what it carries.

    Every chunk with text has to add something; or all but few add one token each, nothing else adds any, and
    the sum is what the server claims. Usage before the first text shows no token: what it adds counts with
    the next text. Where no chunk has text, each that does not name the role has to add one token: halves of
    characters, or tokens that text leaves out.
    """
    silent = not any(text)
    steps, before, seen_text = [], hidden, silent and bool(chunks)
    for chunk, length in zip(chunks, text, strict=True):
        seen_text = seen_text or length > 0
        step = 0 if chunk.reported is None else chunk.reported - before
        if silent and not chunk.role and step != 1:
            return None
        if not seen_text or (silent and chunk.role):
            step = 0
        step = max(0, step)
        before += step
        steps.append(step)
    if not seen_text or not any(steps):
        return None
    whole = all(step or not length for step, length in zip(steps, text, strict=True))
    ones = max(steps) == 1 and all(length or not step for step, length in zip(steps, text, strict=True))
    return steps if whole or (ones and sum(steps) == claimed and _tell_all(steps, text, claimed)) else None


def join_near(events: Sequence[tuple[float, int]], t_sent: float | None = None) -> list[tuple[float, int]]:
    """Make one chunk of those that a server wrote together: how it cuts its bytes makes no difference.

    A chunk has the time of its last part, the first chunk of an answer that of its first.

    Args:
        t_sent: When the request was sent: an answer that came within a tenth of the time until then, faster
            than tokens can be made, came at once.
    """
    if len(events) < 2:
        return list(events)
    (first, _), (last, _) = events[0], events[-1]
    mean = (last - first) / (len(events) - 1)
    near = min(NEAR_S, NEAR_SHARE * mean)
    if t_sent is not None and mean < WRITE_S and last - first < NEAR_SHARE * (first - t_sent):
        near = NEAR_S
    gaps = [gap for (before, _), (now, _) in pairwise(events) if (gap := now - before) > 0]
    short = sorted(gap for gap in gaps if gap < near)
    if short and short[len(short) // 2] >= WRITE_S and len(gaps) - len(short) < STEP_SHARE * len(gaps):
        near = 0.0
    joined, before = [events[0]], first
    for t, tokens in events[1:]:
        if t == before or t - before < near:
            tokens += joined.pop()[1]
        joined.append((t, tokens))
        before = t
    if len(joined) > 1:
        joined[0] = (first, joined[0][1])
    return joined


def _compare(
    stream: Stream, text: Sequence[int], counts: Sequence[int], tokens_of: Callable[[str], int] | None
) -> tuple[str | None, int | None]:
    """Return why the server's counts, one for each chunk, do not fit the text that it sent, and how many
    tokens the model's tokenizer finds in as much of it as can be compared; None: nothing, not known."""
    total = sum(counts)
    with_text = sum(length > 0 for length in text)
    if total < with_text - FLUSHED_CHUNKS:
        return f"{with_text} chunks with text, and only {total} tokens by the server's usage", None
    if tokens_of is None or not with_text:
        return None, None
    counted = _tokens_in(stream.text, total, tokens_of)
    text_tokens: int | None = counted
    if _apart(total, counted):
        parts, kept = _without_cycle(stream, counts)
        counted_once = _tokens_in(parts, kept, tokens_of)
        text_tokens = round(total * counted_once / kept) if kept >= LEAST_COMPARED else None
        if _differ(total, counted) and _differ(kept, counted_once):
            reason = f"{total} tokens by the server's usage, {counted} by the model's tokenizer in its text"
            return reason, text_tokens
    return None, text_tokens


def _apart(total: int, counted: int) -> bool:
    """Tell whether two counts differ by more than text can be split in two ways."""
    return max(total, counted) > CELL_FACTOR * min(total, counted)


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
    if counted <= total or (REPLACEMENT not in text and not _apart(total, counted)):
        return counted
    parts = [part.replace(REPLACEMENT, "") for part in parts]
    counted = max(total, sum(map(tokens_of, parts)))
    if _apart(total, counted):
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
