"""Events of OpenAI's Responses, of Anthropic's Messages and of `/generate`, as chunks that say the same.

The former two name the type of each event and stream text, reasoning and arguments of tools as deltas of
their own types. `/generate` streams the text and the ids of each chunk's tokens, and their count so far. As
chunks they are read in the same way as those of completions and chats, by the same rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from harness.loadgen.sse import read_json

Event = dict[str, Any]
_events = msgspec.json.Decoder(Event)
#: Their reasons to stop, as a chat says them; others stay as they are.
_ENDS = {"max_output_tokens": "length", "max_tokens": "length", "tool_use": "tool_calls"}
_ENDS |= dict.fromkeys(("end_turn", "stop_sequence"), "stop")
_THOUGHTS = ("reasoning_text", "reasoning_summary_text")
_ARGUMENTS = ("function_call_arguments", "custom_tool_call_input", "mcp_call_arguments")
#: What an event of `/generate` has.
GENERATED = b'"meta_info":'
_CALLS = ("function_call", "custom_tool_call", "mcp_call")


def as_chunk(data: bytes) -> bytes:
    """Return an event as a chunk; as it is if it has no type and is not of `/generate`.

    Raises:
        msgspec.MsgspecError: It is not JSON, or a part of it is not what its type says.
    """
    event = read_json(_events, data)
    kind = "generate" if "meta_info" in event else event.get("type")
    if kind is None:
        return data
    write = _WRITERS.get(kind)
    try:
        return msgspec.json.encode({} if write is None else write(event))
    except (KeyError, TypeError, AttributeError) as error:
        raise msgspec.ValidationError(f"an event {kind!r} without {error}") from None


def _generated(event: Event) -> Event:
    meta = event["meta_info"]
    end = (meta.get("finish_reason") or {}).get("type")
    choice = {"text": event.get("text"), "token_ids": event.get("output_ids"), "finish_reason": end}
    counts = {name: meta.get(name) for name in ("prompt_tokens", "completion_tokens")}
    return {"choices": [choice], "usage": counts}


def _delta(**fields: Any) -> Event:
    return {"choices": [{"index": 0, "delta": fields}]}


def _as(field: str) -> Callable[[Event], Event]:
    return lambda event: _delta(**{field: event["delta"]})


def _call(place: int, call_id: str | None = None, **function: str) -> Event:
    return _delta(tool_calls=[{"index": place, "id": call_id, "function": function}])


def _arguments(event: Event) -> Event:
    return _call(event.get("output_index", 0), arguments=event["delta"])


def _item(event: Event) -> Event:
    item = event["item"]
    if item["type"] not in _CALLS:
        return {}
    return _call(event.get("output_index", 0), item.get("call_id"), name=item.get("name") or "")


def _response(event: Event) -> Event:
    """The model at the beginning; the end of an answer, and its usage."""
    response = event["response"]
    if error := response.get("error"):
        return {"error": {"message": error.get("message")}}
    chunk: Event = {"model": response.get("model"), "choices": []}
    if event["type"] in ("response.completed", "response.incomplete"):
        calls = any(item["type"] in _CALLS for item in response.get("output") or ())
        why = (response.get("incomplete_details") or {}).get("reason")
        end = _ENDS.get(why, why) if why else "tool_calls" if calls else "stop"
        chunk["choices"] = [{"index": 0, "delta": {}, "finish_reason": end}]
    if usage := response.get("usage"):
        details = usage.get("output_tokens_details") or {}
        chunk["usage"] = {
            "prompt_tokens": usage.get("input_tokens"),
            "completion_tokens": usage.get("output_tokens"),
            "total_tokens": usage.get("total_tokens"),
            "prompt_tokens_details": usage.get("input_tokens_details"),
            "completion_tokens_details": {"reasoning_tokens": details.get("reasoning_tokens")},
        }
    return chunk


def _usage(usage: Event) -> Event:
    """Usage of a message, whose `input_tokens` were neither read from a cache nor put there."""
    cached = usage.get("cache_read_input_tokens")
    prompt = [usage.get("input_tokens"), cached, usage.get("cache_creation_input_tokens")]
    return {
        "prompt_tokens": sum(filter(None, prompt)) or None,
        "prompt_tokens_details": None if cached is None else {"cached_tokens": cached},
        "completion_tokens": usage.get("output_tokens"),
    }


def _message_start(event: Event) -> Event:
    message = event["message"]
    usage = _usage(message.get("usage") or {}) | {"completion_tokens": None}
    return {"model": message.get("model"), "choices": [], "usage": usage}


def _block_start(event: Event) -> Event:
    block = event["content_block"]
    if block["type"].endswith("tool_use"):
        return _call(event["index"], block.get("id"), name=block.get("name") or "")
    return _delta(content=block.get("text"), reasoning_content=block.get("thinking"))


def _block_delta(event: Event) -> Event:
    delta = event["delta"]
    if "partial_json" in delta:
        return _call(event["index"], arguments=delta["partial_json"])
    return _delta(content=delta.get("text"), reasoning_content=delta.get("thinking"))


def _message_delta(event: Event) -> Event:
    end = event["delta"].get("stop_reason")
    choices = [{"index": 0, "delta": {}, "finish_reason": _ENDS.get(end, end)}]
    return {"choices": choices, "usage": _usage(event.get("usage") or {})}


def _error(event: Event) -> Event:
    error = event.get("error") or event
    return {"error": {"message": str(error.get("message") or error)}}


_WRITERS: dict[str, Callable[[Event], Event]] = {
    "generate": _generated,
    **{f"response.{kind}": _response for kind in ("created", "completed", "incomplete", "failed")},
    **{f"response.{kind}.delta": _as("content") for kind in ("output_text", "refusal")},
    **{f"response.{kind}.delta": _as("reasoning_content") for kind in _THOUGHTS},
    **{f"response.{kind}.delta": _arguments for kind in _ARGUMENTS},
    "response.output_item.added": _item,
    "message_start": _message_start,
    "content_block_start": _block_start,
    "content_block_delta": _block_delta,
    "message_delta": _message_delta,
    "error": _error,
}
