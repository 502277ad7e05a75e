"""Content of an OpenAI stream: pieces of text, token ids, usage, the reason to finish, errors.

Understood are /v1/completions and /v1/chat/completions as vLLM, SGLang, roseinfer, llama.cpp and
transformers send them; /v1/responses, /v1/messages and LMDeploy's /generate through `typed_events.py`. Beyond
OpenAI's own fields: `choices[0].token_ids` (with `return_token_ids`), `usage` in every chunk (with
`stream_options.continuous_usage_stats`), and `metrics`, in the last chunk (vLLM with
--enable-per-request-metrics) or the last choice (roseinfer with `return_metrics`), or `timings` (llama.cpp).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from harness.loadgen.sse import Content, Function, answer_of, read_events, read_json, thought_of
from harness.loadgen.typed_events import GENERATED, as_chunk


class StreamChunk(msgspec.Struct, gc=False):
    """One chunk with a choice in it: characters of text, and what it says about tokens.

    `answer` is how many of these characters are not reasoning. `token_ids` is how many ids it carries;
    `reported` the completion tokens so far, by its usage; `role` says that its delta names the speaker,
    `ends` that it has the reason to finish.
    """

    t: float
    text: int
    token_ids: int | None
    reported: int | None
    role: bool = False
    answer: int = 0
    ends: bool = False


@dataclass(slots=True)
class Stream:
    """Content of a stream. `ids` are the token ids of each chunk as it has them; `text` has one part for each
    chunk with text; `completion_tokens` is from the last usage, as is `reasoning_tokens`, shown or not;
    `error` is the first error in the stream. `calls_tools`: some of the text is of tool calls, which a server
    writes anew, so that it is not what the model generated. `calls` are their names and arguments, `t_call`
    is when the first began, `t_called` when the last part of its arguments came. `models` are the models that
    its chunks name; `unread` says how many chunks without text have some in a field of their delta that is
    not read, by its name."""

    chunks: list[StreamChunk] = field(default_factory=list)
    ids: list[list[int]] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    finish_reason: str | None = None
    done: bool = False
    calls_tools: bool = False
    calls: list[list[str]] = field(default_factory=list)
    t_call: float | None = None
    t_called: float | None = None
    error: str | None = None
    times: dict[str, float] = field(default_factory=dict)
    models: dict[str, None] = field(default_factory=dict)
    unread: Counter[str] = field(default_factory=Counter)


#: What a server counts and times, within what the raw tables hold; anything else is an error in its stream.
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


@dataclass(frozen=True)
class StreamFields:
    """Fields of a stream beyond OpenAI's own.

    Attributes:
        times: those of `metrics` or `timings` that may have each time, by its name, such as `queue_wait_ms`.
        content: those of a delta that have text of the answer's reasoning.
        model: the model that requests name, which its chunks should name too; None: not known.
        typed: its events are those of Responses or of Messages.
    """

    times: Mapping[str, Sequence[str]] = field(default_factory=dict)
    content: Sequence[str] = ()
    model: str | None = None
    typed: bool = False


OWN_FIELDS = StreamFields()
_Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class _ToolCall(msgspec.Struct):
    index: Any = None
    function: Function | None = None


class _Delta(msgspec.Struct):
    """vLLM, SGLang, llama.cpp and DeepSeek say `reasoning_content`; OpenRouter and later versions of vLLM
    `reasoning`. A server that sends both says the same twice. Mistral has parts in `content`."""

    role: str | None = None
    content: Content = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None
    function_call: Function | None = None

    @property
    def is_plain(self) -> bool:
        """True if there is nothing beside the content."""
        thought = self.reasoning_content or self.reasoning
        return not (thought or self.refusal or self.tool_calls or self.function_call)

    @property
    def thought(self) -> str:
        return self.reasoning_content or self.reasoning or thought_of(self.content)

    @property
    def called(self) -> list[tuple[int | None, str, str]]:
        """Names and arguments of tool calls, each with the place of its call; None: not known."""
        parts = [*(self.tool_calls or ()), _ToolCall(0, self.function_call)]
        return [
            (part.index if isinstance(part.index, int) else None, made.name or "", made.arguments or "")
            for part in parts
            if (made := part.function) is not None and (made.name or made.arguments)
        ]


class _Choice(msgspec.Struct):
    index: Any = None
    text: str | None = None
    delta: _Delta | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    metrics: msgspec.Raw | UnsetType = UNSET


class _PromptDetails(msgspec.Struct):
    cached_tokens: _Count | None = None


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: _Count | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    total_tokens: _Count | None = None
    prompt_tokens_details: _PromptDetails | None = None
    prompt_cache_hit_tokens: _Count | None = None  # DeepSeek's
    completion_tokens_details: _CompletionDetails | None = None

    @property
    def reasoning_tokens(self) -> int | None:
        details = self.completion_tokens_details
        return None if details is None else details.reasoning_tokens

    @property
    def all_completion_tokens(self) -> int | None:
        """With those of reasoning, which xAI counts beside `completion_tokens`: only then the total is so."""
        completion, reasoning = self.completion_tokens, self.reasoning_tokens
        if completion is None or not reasoning:
            return completion
        beside = self.total_tokens == (self.prompt_tokens or 0) + completion + reasoning
        return completion + reasoning if beside else completion


class _Error(msgspec.Struct):
    message: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    metrics: msgspec.Raw | UnsetType = UNSET
    timings: msgspec.Raw | UnsetType = UNSET
    error: _Error | str | None = None
    object: str | None = None
    message: str | None = None
    detail: msgspec.Raw | UnsetType = UNSET
    model: Any = None


class _RawChoice(msgspec.Struct):
    delta: dict[str, Any]


class _RawEvent(msgspec.Struct):
    choices: list[_RawChoice]


_events = msgspec.json.Decoder(_Event)
_raw_events = msgspec.json.Decoder(_RawEvent)
_TEXT_NAMES = ("text", "content", "thinking", "summary")
#: Characters of a server's text about an error.
MAX_ERROR = 500
#: Tool calls of an answer that are kept apart.
MAX_CALLS = 127
#: Fewer chunks with ids may begin with the same ones by chance.
LEAST_REPEATED = 4
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_milliseconds = msgspec.json.Decoder(_Milliseconds)


def read_stream(
    pieces: Sequence[tuple[float, bytes]], *, complete: bool, fields: StreamFields = OWN_FIELDS
) -> Stream:
    """Read a body's events up to its end, or the first error.

    What comes after `[DONE]` is read too if it is understood: a server may say so before its last chunks. If
    it sends more than one answer, the first is read, and usage, which counts all, is left out.
    """
    stream = Stream()
    several = False
    for t, data in read_events(pieces, complete=complete):
        if data == b"[DONE]":
            stream.done = True
            continue
        try:
            data = as_chunk(data) if fields.typed or GENERATED in data else data
            event = read_json(_events, data)
        except msgspec.MsgspecError as error:
            if not stream.done:
                stream.error = f"a chunk that is not understood ({error}): {_clip(data)}"
            break
        says = event.message is not None or event.detail is not UNSET  # {"code", "message"}, FastAPI's
        bare = says and not event.choices and event.usage is None
        if event.error is not None or event.object == "error" or bare:
            stream.error = _error_message(event) or _clip(data)
            break
        if event.choices and any(choice.index for choice in event.choices):
            several = True
            event.choices = [choice for choice in event.choices if not choice.index]
        if event.model and isinstance(event.model, str):
            stream.models[event.model] = None
        _take(stream, t, event, data, fields)
    if several:
        stream.completion_tokens = None
        for chunk in stream.chunks:
            chunk.reported = None
    if stream.completion_tokens != sum(map(len, stream.ids)):
        _count_ids_once(stream)
    return stream


def _count_ids_once(stream: Stream) -> None:
    """Count no token id twice: each chunk may repeat all ids before its own, or the last one may."""
    chunks, ids = stream.chunks, stream.ids
    holders = [i for i, of_chunk in enumerate(ids) if of_chunk]
    if len(holders) < LEAST_REPEATED:
        return
    if all(len(ids[i]) < len(ids[j]) and ids[j][: len(ids[i])] == ids[i] for i, j in pairwise(holders)):
        for i, j in pairwise(holders):
            chunks[j].token_ids = len(ids[j]) - len(ids[i])
        return
    last = holders[-1]
    before = [token for i in holders[:-1] for token in ids[i]]
    if ids[last][: len(before)] == before:
        chunks[last].token_ids = len(ids[last]) - len(before)


def read_error(body: bytes) -> str:
    """The message of a JSON error, or the beginning of whatever else came instead of a stream."""
    try:
        return _error_message(read_json(_events, body)) or _clip(body)
    except msgspec.MsgspecError:
        return _clip(body)


def _take(stream: Stream, t: float, event: _Event, data: bytes, fields: StreamFields) -> None:
    usage, reported = event.usage, None
    if usage is not None:
        reported = usage.all_completion_tokens
        stream.completion_tokens = reported if reported is not None else stream.completion_tokens
        if usage.prompt_tokens:  # no prompt has none
            stream.prompt_tokens = usage.prompt_tokens
        if usage.prompt_tokens_details is not None:
            stream.cached_tokens = usage.prompt_tokens_details.cached_tokens
        elif usage.prompt_cache_hit_tokens is not None:
            stream.cached_tokens = usage.prompt_cache_hit_tokens
        if usage.completion_tokens_details is not None:
            stream.reasoning_tokens = usage.reasoning_tokens
    if event.choices:
        choice = event.choices[0]
        delta, ids, end = choice.delta, choice.token_ids, choice.finish_reason
        thought, answer = "", choice.text or ""
        if delta is not None:
            if isinstance(delta.content, str) and delta.is_plain:
                answer += delta.content
            else:
                called = delta.called
                _take_calls(stream, t, called)
                thought = delta.thought
                texts = (answer_of(delta.content), delta.refusal, *(a + b for _, a, b in called))
                answer += "".join(filter(None, texts))
            if not (thought or answer):
                thought = _elsewhere(stream, data, fields.content)
        if text := thought + answer:
            stream.text.append(text)
        role = delta is not None and delta.role is not None
        count = None if ids is None else len(ids)
        stream.ids.append(ids or [])
        stream.chunks.append(StreamChunk(t, len(text), count, reported, role, len(answer), bool(end)))
        if end:
            stream.finish_reason = end
        if choice.metrics is not UNSET:
            _take_times(stream, choice.metrics, fields)
    if event.metrics is not UNSET:
        _take_times(stream, event.metrics, fields)
    if event.timings is not UNSET:
        _take_times(stream, event.timings, fields)


def _take_calls(stream: Stream, t: float, parts: Sequence[tuple[int | None, str, str]]) -> None:
    """Add parts of tool calls; one whose place is not known begins a call where it has a name."""
    for index, name, arguments in parts:
        stream.calls_tools = True
        if stream.t_call is None:
            stream.t_call = t
        place = (len(stream.calls) - (not name)) if index is None else index
        while len(stream.calls) <= min(max(place, 0), MAX_CALLS):
            stream.calls.append(["", ""])
        call = stream.calls[min(max(place, 0), MAX_CALLS)]
        call[0] += name
        call[1] += arguments
        if call is stream.calls[0]:
            stream.t_called = t


def _elsewhere(stream: Stream, data: bytes, wanted: Sequence[str]) -> str:
    """Return the text in the first of the fields `wanted` of a delta; note where other fields have some."""
    try:
        deltas = [choice.delta for choice in read_json(_raw_events, data).choices[:1]]
    except msgspec.MsgspecError:  # null instead of a delta
        return ""
    read_fields = _Delta.__struct_fields__
    texts = {
        name: _text_in(value) for delta in deltas for name, value in delta.items() if name not in read_fields
    }
    if text := next((texts[name] for name in wanted if texts.get(name)), ""):
        return text
    stream.unread.update(name for name, text in texts.items() if text)
    return ""


def _text_in(value: object) -> str:
    """Return the text of a field: a string, parts, or an object that has some under a usual name."""
    if isinstance(value, list):
        return "".join(map(_text_in, value))
    if isinstance(value, dict):
        return next(filter(None, (_text_in(value.get(name)) for name in _TEXT_NAMES)), "")
    return value if isinstance(value, str) else ""


def _take_times(stream: Stream, raw: msgspec.Raw, fields: StreamFields) -> None:
    try:
        values = _fields.decode(raw)
    except msgspec.MsgspecError:  # another server's idea of metrics
        return
    for time, names in fields.times.items():
        present = next((values[name] for name in names if name in values), None)
        if present is not None:
            with suppress(msgspec.MsgspecError):
                stream.times[time] = _milliseconds.decode(present)


def _error_message(event: _Event) -> str | None:
    text = event.error.message if isinstance(event.error, _Error) else event.error or event.message
    return text and text[:MAX_ERROR]


def _clip(data: bytes) -> str:
    """At most 200 characters of what was received, on one line; of a page its title."""
    text = data[:800].decode("utf-8", "replace")
    title = re.search(r"<title>(.+?)</title>", text, re.IGNORECASE | re.DOTALL)
    return " ".join((title[1] if title else text).split())[:200]
