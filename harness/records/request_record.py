"""One response to one row: stamped bytes to HTTP, when tokens came, how many, and the kind of its error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httptools
import msgspec

from harness.loadgen.load_plan import RawResponse
from harness.plain_text import one_line
from harness.records.stream import OWN_FIELDS, Stream, StreamFields, read_error, read_stream
from harness.records.tokens import TokenCount, TokenSource, answer_began, count_tokens

#: Reasons to finish that belong to a whole answer: of vLLM, SGLang, TensorRT-LLM and llama.cpp, of TGI, of
#: Together, of Mistral, and of gateways to Anthropic's models.
_GOOD_ENDS = (
    *("stop", "length", "tool_calls", "function_call", "eos_token", "stop_sequence"),
    *("eos", "model_length", "end_turn", "max_tokens", "tool_use"),
)

#: A server may count so many tokens more than the prompt that was sent: a token that begins the sequence.
BEGIN_TOKENS = 1

#: Two stamps of one clock, by the kernel and by this program, may differ by so many seconds.
CLOCK_S = 1e-3

#: Characters of what a server said about an error.
MAX_DETAIL = 300


@dataclass(frozen=True)
class RequestRecord:
    """Columns of the table of requests that the stream of one request gives.

    Times are CLOCK_MONOTONIC seconds; `t_answer` is when the first token came that is not reasoning.
    `chunks` has the time and the tokens of each chunk that carries tokens. `hidden_tokens` are of reasoning
    that the server counts and does not send; they are not in `completion_tokens`. `text_tokens` are those
    that the model's tokenizer finds in the text. `other_models` are those that the chunks name instead of the
    one that was asked for, `unread_fields` the fields of deltas that have text and were not read. `times` are
    columns that the engine itself measured. `tool_calls` are names and arguments of tool calls as JSON; the
    first began at `t_call`, and was whole at `t_called`.

    `error` is None for a success; else one of the client's own kinds, `http_<status>`, `stream_error` (an
    error in the stream, or what came is no stream), `truncated` (the response ended properly, the stream did
    not), `no_tokens`, `only_reasoning` (none but hidden tokens), `no_usage` (there is text, and no count of
    its tokens), `token_mismatch` (two counts, or a count and the text, disagree), `prompt_mismatch` (the
    server counted another prompt than was sent) or `wrong_length` (not the number of tokens asked for).
    """

    chunks: list[tuple[float, int]]
    t_answer: float | None
    completion_tokens: int | None
    hidden_tokens: int | None
    prompt_tokens: int | None
    token_source: TokenSource | None
    status: int | None
    t_head: float | None
    error: str | None
    error_detail: str | None
    finish_reason: str | None
    cached_tokens: int | None
    text_tokens: int | None
    other_models: str | None
    unread_fields: str | None
    tool_calls: str | None
    t_call: float | None
    t_called: float | None
    times: dict[str, float]


def read_request(
    raw: RawResponse,
    exact_tokens: int | None,
    prompt_tokens: int | None = None,
    tokens_of: Callable[[str], int] | None = None,
    fields: StreamFields = OWN_FIELDS,
) -> RequestRecord:
    """Read one response.

    Args:
        exact_tokens: The output tokens that it must have; None: any number.
        prompt_tokens: The tokens of the prompt that the server must have counted; None: not known.
        tokens_of: Tokens of a text by the model's tokenizer, to check counts that have no token ids.
        fields: Fields of its stream beyond OpenAI's own.
    """
    wire = read_wire(raw)
    stream, count = Stream(), TokenCount(None, [], 0)
    if wire.status == 200 and _is_stream(wire):
        stream = read_stream(wire.body, complete=wire.complete, fields=fields)
        count = count_tokens(stream, tokens_of, raw.t_sent, exact_tokens)
    error, detail = _judge(raw, wire, stream, count, exact_tokens, prompt_tokens) or (None, None)
    return RequestRecord(
        chunks=count.chunks,
        t_answer=answer_began(stream, count.chunks) if count.chunks else None,
        completion_tokens=count.total if count.source else None,
        hidden_tokens=count.hidden or None,
        prompt_tokens=stream.prompt_tokens,
        token_source=count.source,
        status=wire.status,
        t_head=wire.t_head,
        error=error,
        error_detail=None if detail is None else one_line(detail, MAX_DETAIL),
        finish_reason=None if (end := stream.finish_reason) is None else one_line(end, MAX_DETAIL),
        cached_tokens=_cached(stream),
        text_tokens=count.text_tokens,
        other_models=_listed(
            [name for name in stream.models if fields.model and not _same(name, fields.model)]
        ),
        unread_fields=_listed([name for name, chunks in stream.unread.items() if chunks > 1]),
        tool_calls=msgspec.json.encode(stream.calls).decode() if stream.calls else None,
        t_call=stream.t_call,
        t_called=stream.t_called,
        times=stream.times,
    )


def _listed(names: Sequence[str]) -> str | None:
    return one_line(", ".join(names), MAX_DETAIL) or None


def _same(model: str, asked: str) -> bool:
    """Tell whether two names are of one model, but for its folder, its revision and capitals."""
    name, asked_name = (
        each.rstrip("/").rpartition("/")[2].partition("@")[0].lower() for each in (model, asked)
    )
    return name == asked_name


def _cached(stream: Stream) -> int | None:
    """Prompt tokens from a cache; None where they are more than the prompt has, and so no count of them."""
    cached, prompt = stream.cached_tokens, stream.prompt_tokens
    return None if cached is not None and prompt is not None and cached > prompt else cached


def _judge(
    raw: RawResponse,
    wire: WireResponse,
    stream: Stream,
    count: TokenCount,
    exact_tokens: int | None,
    prompt_tokens: int | None,
) -> tuple[str, str] | None:
    """Kind and detail of the first thing that is wrong; None for a success."""
    reported = stream.completion_tokens
    if wire.status is not None and wire.status != 200:
        return f"http_{wire.status}", read_error(_body(wire))
    if (coding := wire.headers.get("content-encoding", "identity").lower()) != "identity":
        return "stream_error", f"the answer is compressed ({coding}), which nobody asked for"
    if stream.error is not None:
        return "stream_error", stream.error
    if raw.error is not None and not (stream.done and raw.error == "disconnected"):
        whole = "the answer is complete, and the server did not end the response: " if stream.done else ""
        return raw.error, whole + raw.detail
    if not _is_stream(wire):
        content_type = wire.headers.get("content-type")
        return "stream_error", f"not an event stream but {content_type}: {read_error(_body(wire))}"
    if stream.finish_reason is not None and stream.finish_reason not in _GOOD_ENDS:
        return "stream_error", f"the engine finished with reason {stream.finish_reason!r}"
    if not stream.done and stream.finish_reason is None:
        return "truncated", "the response ended without [DONE] and without a finish_reason"
    if stream.text and count.source is None:
        return "no_usage", f"{len(stream.text)} chunks with text, and neither token ids nor usage"
    if not count.chunks:
        if count.hidden:
            which = "all" if count.hidden == reported else count.hidden
            hidden = f"{which} of them hidden reasoning: raise --output-len"
            return "only_reasoning", f"{reported} tokens were counted, {hidden}"
        unread = _listed(list(stream.unread))
        named = f"; --content-field reads the text in {unread}" if unread else ""
        return "no_tokens", f"the stream carries no token{named}"
    if reported is not None and reported != count.total + count.hidden:
        usage = f"{reported - count.hidden} by the final usage"
        return "token_mismatch", f"{count.total} tokens by {count.source}, {usage}"
    if count.problem is not None:
        return "token_mismatch", count.problem
    if prompt_tokens is not None and stream.prompt_tokens is not None:
        counted, most = stream.prompt_tokens, prompt_tokens + BEGIN_TOKENS
        if not prompt_tokens <= counted <= most:
            return "prompt_mismatch", f"a prompt of {prompt_tokens} tokens was sent, {counted} were counted"
    is_known = count.source != "estimated"
    if exact_tokens is not None and is_known and (total := count.total + count.hidden) != exact_tokens:
        return "wrong_length", f"{total} tokens, {exact_tokens} asked for"
    if exact_tokens is None and stream.finish_reason is None:  # nothing else says that it is whole
        return "truncated", "the stream ended without a finish_reason"
    if raw.t_sent is None or count.chunks[0][0] < raw.t_sent - CLOCK_S:
        return "protocol", "the first token came before the whole request was sent"
    return None


def _is_stream(wire: WireResponse) -> bool:
    return wire.headers.get("content-type", "text/event-stream").lower().startswith("text/event-stream")


def _body(wire: WireResponse) -> bytes:
    return b"".join(data for _, data in wire.body)


@dataclass
class WireResponse:
    """A response: header names in lower case, body pieces each with the time of the read that brought it.

    `status` is None when no response head came, `t_head` when it was there. `complete` says that the response
    ended as HTTP wants it. httptools calls the methods; a 1xx response announces the one that counts.
    """

    status: int | None = None
    t_head: float | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: list[tuple[float, bytes]] = field(default_factory=list)
    complete: bool = False
    _now: float = 0.0

    def read(self, segments: Sequence[tuple[float, bytes]]) -> None:
        """Undo HTTP's framing. Raises HttpParserError where this is not HTTP."""
        self._parser = httptools.HttpResponseParser(self)
        for self._now, data in segments:
            self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.headers.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status, self.t_head = self._parser.get_status_code(), self._now

    def on_body(self, data: bytes) -> None:
        self.body.append((self._now, data))


def read_wire(raw: RawResponse) -> WireResponse:
    """Undo HTTP's framing. What is not HTTP ends the body; the client has said so in `raw.error`."""
    response = WireResponse(complete=raw.error is None)
    try:
        response.read(raw.segments)
    except httptools.HttpParserError:
        response.complete = False
    return response
