"""How the mock server can answer a request, and its record of what it did."""

from __future__ import annotations

from typing import Literal

import msgspec


class Behaviour(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one request is answered. Times are ms; chunks are counted where they carry tokens."""

    ttft_ms: float = 40.0  # after the request, or after its turn came where it had to queue
    itl_ms: float = 5.0  # from token to token: a chunk of k tokens comes k of these after the one before
    tokens_per_chunk: int = 1
    chunks_per_write: int = 1  # handed to the kernel together, when the last of them is due
    tokens: int | None = None  # sent instead of the max_tokens asked for
    chat: bool = False  # chunks of /v1/chat/completions, a role chunk first
    reasoning: int = 0  # of a chat, so many tokens are reasoning, before the answer
    reasoning_field: Literal["reasoning_content", "reasoning"] = "reasoning_content"
    tool_calls: int = 0  # of a chat, so many tokens at the end are a tool call
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
    ids_in: Literal["each", "first", "last"] = "each"  # chunk that carries the token ids
    prompt_off_by: int = 0  # added to the prompt tokens that are reported
    finish_reason: str | None = "length"
    done: bool = True  # `[DONE]` at the end
    crlf: bool = False
    pings: bool = False  # a comment before every chunk
    comments: int = 0  # sent before the first token, 10 ms apart, whatever ttft_ms says
    framing: Literal["chunked", "length", "close"] = "chunked"
    end_delay_ms: float = 0.0  # between the last chunk and the end of the response
    status: int = 200
    content_type: str = "text/event-stream"
    error_after: int | None = None  # after this many chunks an error object inside the stream
    half_event_after: int | None = None  # half an event, then a proper end
    garbled_after: int | None = None  # an event that is no JSON
    padding: int = 0  # bytes in addition to the text in the first chunk that carries a token
    cut_after: int | None = None  # the connection is closed within the response
    reset: bool = False  # the cut is a reset (RST) instead of a proper close
    silent: bool = False  # not a byte, and the connection stays open
    stall_after: int | None = None  # nothing more; the connection stays open
    hang_up: bool = False  # close the kept connection after the response without having said so


Outcome = Literal["complete", "cut", "stalled", "aborted"]


class ServedRequest(msgspec.Struct):
    """What the server did with one request. Times are CLOCK_MONOTONIC seconds; `writes` are the chunks that
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
