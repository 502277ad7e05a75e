"""Writes the whole answer to a request in advance: which bytes, when, carrying how many tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from http import HTTPStatus
from itertools import cycle, groupby
from typing import Any, Literal

import msgspec

COMMENT, COMMENT_GAP_S = b": still working", 0.01

Kind = Literal["text", "reasoning", "tool call"]

_WORDS = (" the", " café", " serves", " 面", ",", " tokens", " and", " 🌹")


@dataclass(frozen=True, slots=True)
class Step:
    """Bytes to write `after_s` seconds after the request's turn came; `tokens` of each chunk in them that
    carries any. `answers`: some of them are not reasoning."""

    after_s: float
    data: bytes
    tokens: tuple[int, ...] = ()
    answers: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """A whole answer. After its last step the response is over, unless `outcome` says otherwise."""

    steps: tuple[Step, ...]
    outcome: Outcome
    status: int
    close: bool
    reset: bool = False


@lru_cache(maxsize=256)
def write_script(behaviour: Behaviour, max_tokens: int, prompt_tokens: int) -> Script:
    """The answer to a request for `max_tokens` tokens."""
    if behaviour.silent:
        return Script((Step(0.0, b""),), "stalled", 200, False)
    if behaviour.status != 200:
        return refusal(behaviour.status, behaviour.retry_after)
    if behaviour.drop_ms is not None:
        return Script((Step(0.0, b""), Step(behaviour.drop_ms / 1e3, b"")), "cut", 200, True)
    events, outcome = _events(behaviour, max_tokens, prompt_tokens)
    events = [replace(event, data=_wire(behaviour, event.data)) for event in events]
    steps = [Step(0.0, _head(behaviour, sum(len(event.data) for event in events)))]
    framed = [replace(event, data=_frame(behaviour, event.data)) for event in events]
    steps += _together(framed, behaviour.chunks_per_write)
    if outcome == "complete" and behaviour.framing != "length":  # that one is over with its last byte
        last = steps[-1].after_s + behaviour.end_delay_ms / 1e3
        steps.append(Step(last, b"0\r\n\r\n" if behaviour.framing == "chunked" else b""))
    close = behaviour.framing == "close" or behaviour.hang_up
    return Script(tuple(steps), outcome, 200, close, behaviour.reset)


def _together(steps: list[Step], count: int) -> list[Step]:
    """Join every `count` steps that carry tokens, at the time of the last of them."""
    if count == 1:
        return steps
    joined = []
    for carries, run in groupby(steps, key=lambda step: bool(step.tokens)):
        part = list(run)
        for start in range(0, len(part), count if carries else 1):
            some = part[start : start + (count if carries else 1)]
            tokens = tuple(k for step in some for k in step.tokens)
            answers = any(step.answers for step in some)
            joined.append(Step(some[-1].after_s, b"".join(step.data for step in some), tokens, answers))
    return joined


@lru_cache(maxsize=64)
def refusal(status: int, retry_after: str | None = None) -> Script:
    """An answer that is only a status and a JSON error."""
    phrase = HTTPStatus(status).phrase
    return plain(status, {"error": {"message": phrase, "type": phrase, "code": status}}, retry_after)


def plain(status: int, body: dict[str, Any], retry_after: str | None = None) -> Script:
    """An answer of one JSON object."""
    again = "" if retry_after is None else f"\r\nRetry-After: {retry_after}"
    return _whole(status, f"application/json{again}", msgspec.json.encode(body))


def page(text: str) -> Script:
    """An answer of plain text."""
    return _whole(200, "text/plain", text.encode())


def _whole(status: int, kind: str, body: bytes) -> Script:
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {kind}\r\n"
    data = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
    return Script((Step(0.0, data),), "complete", status, False)


def _events(behaviour: Behaviour, max_tokens: int, prompt_tokens: int) -> tuple[list[Step], Outcome]:
    """The stream as JSON texts with their times, and how it ends."""
    total = max_tokens if behaviour.tokens is None else behaviour.tokens
    events: list[Step] = []
    sent = 0
    delay = 0.0
    prompt_tokens += behaviour.prompt_off_by
    if behaviour.comments:
        events += [Step(i * COMMENT_GAP_S, COMMENT) for i in range(behaviour.comments)]
        delay = events[-1].after_s
    chunked = [(k, at + delay) for k, at in _due_chunks(behaviour, total)]
    before = delay + behaviour.ttft_ms / 2e3
    if behaviour.chat:
        continuous = behaviour.usage == "continuous"
        usage = _usage(behaviour, prompt_tokens, behaviour.role_usage) if continuous else None
        events.append(Step(before, _chunk(behaviour, behaviour.role_text, role=True, usage=usage)))
    if behaviour.empty_first or behaviour.filler:
        events.append(Step(before, _chunk(behaviour, behaviour.filler)))
    for chunks, (k, at) in enumerate(chunked):
        if chunks == behaviour.cut_after:
            return events, "cut"
        if chunks == behaviour.stall_after:
            return events, "stalled"
        if chunks == behaviour.error_after:
            error = {"error": {"message": "the engine gave up", "type": "InternalServerError", "code": 500}}
            return [*events, Step(at, msgspec.json.encode(error))], "complete"
        if chunks == behaviour.half_event_after:
            whole = _chunk(behaviour, " never")
            return [*events, Step(at, whole[: len(whole) // 2])], "complete"
        if chunks == behaviour.garbled_after:
            return [*events, Step(at, b'{"choices": [}')], "complete"
        if total - sent == behaviour.after_done:
            events.append(Step(at, b"[DONE]"))
        held = behaviour.held_back and chunks % 2 == 0 and sent + k < total
        kind = _kind(behaviour, sent, total)
        held = held or (behaviour.end_token and sent + k == total)
        text = "" if held else "".join(_WORDS[i % len(_WORDS)] for i in range(sent, sent + k))
        sent += k
        finish = ("stop" if behaviour.end_token else behaviour.finish_reason) if sent == total else None
        reported = min(total, sent + behaviour.usage_ahead)
        usage = _usage(behaviour, prompt_tokens, reported) if behaviour.usage == "continuous" else None
        ids, padding = _ids(behaviour, sent - k, sent, total), behaviour.padding if chunks == 0 else 0
        if kind == "tool call" and behaviour.arguments:
            text = _arguments(behaviour, sent - k, sent, total)
        begins = sent - k <= total - behaviour.tool_calls < sent
        data = _chunk(
            behaviour,
            text,
            kind=kind,
            token_ids=ids,
            finish=finish,
            usage=usage,
            padding=padding,
            begins=begins,
        )
        events.append(Step(at, data, (k,), kind != "reasoning" and not held))
        events += [Step(at, _chunk(behaviour, text, kind=kind, index=i)) for i in range(1, behaviour.answers)]
    if behaviour.flush_ms is not None:
        events.append(Step(events[-1].after_s + behaviour.flush_ms / 1e3, _chunk(behaviour, ".")))
    last = events[-1].after_s if events else 0.0
    if behaviour.usage != "none":
        usage = _usage(behaviour, prompt_tokens, sent + behaviour.usage_off_by)
        events.append(Step(last, msgspec.json.encode({**_ENVELOPE, "choices": [], "usage": usage})))
    if behaviour.done and not behaviour.after_done:
        events.append(Step(last, b"[DONE]"))
    return events, "complete"


def chunk_sizes(behaviour: Behaviour, total: int) -> list[int]:
    """Tokens of each chunk of an answer of `total`."""
    pattern = cycle(behaviour.chunk_tokens or (behaviour.tokens_per_chunk,))
    sizes: list[int] = []
    while (sent := sum(sizes)) < total:
        size = behaviour.first_tokens if not sizes and behaviour.first_tokens else next(pattern)
        left = behaviour.reasoning - sent if behaviour.chat and sent < behaviour.reasoning else total - sent
        sizes.append(min(size, left))
    return sizes


def _due_chunks(behaviour: Behaviour, total: int) -> Iterator[tuple[int, float]]:
    """Yield the tokens of each event of an answer of `total`, and when it is due, in s."""
    at = (behaviour.ttft_ms + behaviour.itl_ms * max(0, behaviour.first_tokens - 1)) / 1e3
    for place, size in enumerate(chunk_sizes(behaviour, total)):
        at += size * behaviour.itl_ms / 1e3 if place else 0.0
        yield from [(1, at)] * size if behaviour.split_writes else [(size, at)]


def _kind(behaviour: Behaviour, place: int, total: int) -> Kind:
    """Return the part of an answer of `total` tokens to which the token at `place` belongs."""
    if not behaviour.chat:
        return "text"
    if place < behaviour.reasoning:
        return "reasoning"
    return "tool call" if place >= total - behaviour.tool_calls else "text"


def _ids(behaviour: Behaviour, start: int, stop: int, total: int) -> list[int]:
    """Token ids of the chunk with tokens `start` to `stop` of an answer of `total`."""
    if behaviour.ids_in == "so far" or (behaviour.ids_in == "each, and all at the end" and stop == total):
        return list(range(stop))
    if behaviour.ids_in in ("each", "each, and all at the end"):
        return list(range(start, stop))
    carries = start == 0 if behaviour.ids_in == "first" else stop == total
    return list(range(total)) if carries else []


_ENVELOPE: dict[str, Any] = {"id": "mock", "object": "text_completion", "created": 0, "model": "mock"}


def _usage(behaviour: Behaviour, prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    usage: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    if behaviour.cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": behaviour.cached_tokens}
    return usage


def _chunk(
    behaviour: Behaviour,
    text: str,
    *,
    role: bool = False,
    kind: Kind = "text",
    token_ids: list[int] | None = None,
    finish: str | None = None,
    usage: dict[str, int] | None = None,
    padding: int = 0,
    index: int = 0,
    begins: bool = False,
) -> bytes:
    choice: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": finish}
    if behaviour.chat:
        choice["delta"] = (
            {"role": "assistant", "content": text} if role else _delta(behaviour, text, kind, begins)
        )
    else:
        choice["text"] = text
    if behaviour.token_ids and token_ids is not None:
        choice["token_ids"] = token_ids
    body = {**_ENVELOPE, "model": behaviour.model, "choices": [choice], "usage": usage}
    if behaviour.chat:
        body["object"] = "chat.completion.chunk"
    if padding:
        body["padding"] = "x" * padding
    return msgspec.json.encode(body)


def _arguments(behaviour: Behaviour, start: int, stop: int, total: int) -> str:
    """Part of the arguments with tokens `start` to `stop` of an answer of `total`."""
    begin, length = total - behaviour.tool_calls, len(behaviour.arguments)
    first, last = (max(0, place - begin) * length // behaviour.tool_calls for place in (start, stop))
    return behaviour.arguments[first:last]


def _delta(behaviour: Behaviour, text: str, kind: Kind, begins: bool) -> dict[str, Any]:
    if kind == "reasoning":
        return {behaviour.reasoning_field: text}
    if kind == "tool call":
        named = {"id": "call_0", "type": "function"} if begins and behaviour.function else {}
        name = {"name": behaviour.function} if named else {}
        return {"tool_calls": [{"index": 0, **named, "function": {**name, "arguments": text}}]}
    return {"content": text}


def _wire(behaviour: Behaviour, data: bytes) -> bytes:
    """Write a JSON text as an event of the stream; half a JSON text as half an event."""
    newline = b"\r\n" if behaviour.crlf else b"\n"
    if data == COMMENT:
        return COMMENT + newline * 2
    ping = b": ping" + newline * 2 if behaviour.pings else b""
    whole = data == b"[DONE]" or data.endswith(b"}")
    return ping + b"data: " + data + (newline * 2 if whole else b"")


def _head(behaviour: Behaviour, length: int) -> bytes:
    framing = {
        "chunked": "Transfer-Encoding: chunked",
        "length": f"Content-Length: {length}",
        "close": "Connection: close",
    }[behaviour.framing]
    return f"HTTP/1.1 200 OK\r\nContent-Type: {behaviour.content_type}\r\n{framing}\r\n\r\n".encode()


def _frame(behaviour: Behaviour, data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if behaviour.framing == "chunked" else data


class Behaviour(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Way in which one request is answered. Times are ms; chunks are counted where they carry tokens."""

    ttft_ms: float = 40.0  # after the request, or after its turn came where it had to queue
    itl_ms: float = 5.0  # from token to token: a chunk of k tokens comes k of these after the one before
    tokens_per_chunk: int = 1
    chunk_tokens: tuple[int, ...] = ()  # sizes of chunks in turn, instead of one size
    first_tokens: int = 0  # held back: the first chunk has so many, and comes when the last of them is there
    split_writes: bool = False  # each token of a chunk is an event, written one right after the other
    chunks_per_write: int = 1  # handed to the kernel together, when the last of them is due
    tokens: int | None = None  # sent instead of the max_tokens asked for
    chat: bool = False  # chunks of /v1/chat/completions, a role chunk first
    reasoning: int = 0  # of a chat, so many tokens are reasoning, before the answer
    reasoning_field: str = "reasoning_content"
    role_text: str = ""  # of a chat, content of the chunk with the role
    filler: str = ""  # text of a chunk before the first token
    flush_ms: float | None = None  # so long after the last token comes the end of its text
    after_done: int = 0  # so many chunks come after `[DONE]`
    answers: int = 1  # sent in turn, by their index
    model: str = "mock"  # named in chunks
    drop_ms: float | None = None  # close a connection that has served before, so long after the request
    tool_calls: int = 0  # of a chat, so many tokens at the end are a tool call
    function: str = ""  # its name
    arguments: str = ""  # its arguments, a part with each of these tokens; empty: the words of the tokens
    end_token: bool = False  # the last token has no text and ends the answer by itself
    template_tokens: int = 0  # added to the words of a chat's messages
    refuses: tuple[str, ...] = ()  # fields that are answered with 400; `prompt` means a list of token ids
    names_field: bool = True  # that answer says which field
    empty_first: bool = False  # a chunk without a token before the first that has one
    held_back: bool = False  # every other chunk has no text yet, as with half a UTF-8 character
    token_ids: bool = True
    usage: Literal["final", "continuous", "none"] = "final"
    usage_off_by: int = 0  # added to the completion tokens that are reported
    cached_ttft_ms: float | None = None  # of a prompt that came before: a prompt cache; None: there is none
    cached_tokens: int | None = None  # prompt tokens reported from the cache, all of such a prompt's but one
    usage_ahead: int = 0  # continuous usage reports so many tokens before they are sent
    role_usage: int = 0  # completion tokens that the role chunk reports, with continuous usage
    ids_in: Literal["each", "first", "last", "so far", "each, and all at the end"] = "each"  # chunk with ids
    prompt_off_by: int = 0  # added to the prompt tokens that are reported
    finish_reason: str | None = "length"
    done: bool = True  # `[DONE]` at the end
    crlf: bool = False
    pings: bool = False  # a comment before every chunk
    comments: int = 0  # sent before the first token, 10 ms apart, whatever ttft_ms says
    framing: Literal["chunked", "length", "close"] = "chunked"
    end_delay_ms: float = 0.0  # between the last chunk and the end of the response
    status: int = 200
    retry_after: str | None = None  # header of such an answer
    content_type: str = "text/event-stream"
    error_after: int | None = None  # after this many chunks an error object inside the stream
    half_event_after: int | None = None  # half an event, then a proper end
    garbled_after: int | None = None  # an event that is no JSON
    padding: int = 0  # bytes in addition to the text in the first chunk that carries a token
    cut_after: int | None = None  # the connection is closed within the response
    reset: bool = False  # the cut is a reset (RST) instead of a proper close
    silent: bool = False  # not a byte, and the connection stays open
    stall_after: int | None = None  # nothing more; the connection stays open
    keeps_ms: float = 0.0  # it computes on for so long after its client has left, and keeps its slot
    hang_up: bool = False  # close the kept connection after the response without having said so


Outcome = Literal["complete", "cut", "stalled", "aborted"]


class ServedRequest(msgspec.Struct):
    """Record of one request. Times are CLOCK_MONOTONIC seconds; `writes` are the chunks that
    carry tokens, as (time, tokens), each stamped as its bytes are handed to the kernel; `t_answer` is the
    first of these times that is of the answer and not of reasoning."""

    request: int  # in the order of arrival
    user: str | None  # as in the request's body
    status: int
    t_received: float  # the kernel's stamp of its last byte
    t_started: float  # when its turn came
    writes: list[tuple[float, int]] = []
    t_answer: float | None = None
    t_end: float = 0.0
    outcome: Outcome = "complete"
