"""Turns the messages of a chat request into what chat templates expect."""

from __future__ import annotations

from typing import Any

import msgspec

from roseinfer.server.http.errors import BadRequestError
from roseinfer.server.openai.requests import ROLES, Message, TextPart, ToolCall
from roseinfer.tokenizer.chat import ChatTemplate


def turn(message: Message, template: ChatTemplate) -> dict[str, Any]:
    """The message as chat templates expect it. A `template` may leave out messages of roles that it does not
    name: then `developer` is `system`, and `function` is refused."""
    role = message.role
    if role not in ROLES:
        raise BadRequestError(f"the role {role!r:.100} is none of {', '.join(ROLES)}", "messages")
    if role == "function" and not template.names(role):
        raise BadRequestError("the model's chat template has no role 'function'; use 'tool'", "messages")
    if role == "developer" and not template.names(role):
        role = "system"
    if message.function_call is not None:
        raise BadRequestError("function_call is not supported in messages; use tool_calls", "messages")
    content = message.content or ""
    if not isinstance(content, str):
        content = "\n".join(_text(part, role) for part in content)
    turn: dict[str, Any] = {"role": role, "content": content}
    for field in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(message, field)) is not None:
            turn[field] = value
    if message.tool_calls:
        turn["tool_calls"] = [_call(call) for call in message.tool_calls]
    return turn


def _text(part: TextPart, role: str) -> str:
    text = part.text if part.type == "text" else None
    if part.type == "refusal" and role == "assistant":
        text = part.refusal
    if text is None:
        raise BadRequestError("only text is supported in messages", "messages")
    return text


def _call(call: ToolCall) -> dict[str, Any]:
    """A tool call as chat templates expect it: with its arguments as an object."""
    arguments = call.function.arguments
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            reason = f"the arguments of the tool call {call.function.name!r:.100} are no JSON object: {error}"
            raise BadRequestError(reason, "messages") from None
    identity = {} if call.id is None else {"id": call.id}
    return {**identity, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}
