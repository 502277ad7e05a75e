"""Tool calls of answers, checked against the tools that were offered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

#: Reasons to finish of an answer that was cut, whose last call may be half of one.
CUT = ("length", "max_tokens", "model_length")


def judge_calls(
    tool_calls: str | None, finish_reason: str | None, tools: Sequence[Mapping[str, Any]]
) -> tuple[int | None, int | None]:
    """Return how many tool calls an answer has, and how many of them are wrong.

    None of an answer that was cut, or to a request without tools. A call is wrong that names no tool of the
    request, or whose arguments are no JSON object that fits the tool's schema: by jsonschema, or without it
    by the schema's `required` alone.
    """
    if not tools or finish_reason in CUT:
        return None, None
    calls = [] if tool_calls is None else msgspec.json.decode(tool_calls)
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    return len(calls), sum(not _fits(schemas.get(name), arguments) for name, arguments in calls)


def _fits(schema: Mapping[str, Any] | None, arguments: str) -> bool:
    try:
        values = msgspec.json.decode(arguments or "{}")
    except msgspec.DecodeError:
        return False
    if schema is None or not isinstance(values, dict):
        return False
    validator = _validator(msgspec.json.encode(schema))
    required = {*schema.get("required", ())}
    return values.keys() >= required if validator is None else bool(validator.is_valid(values))


@lru_cache(maxsize=1024)
def _validator(schema: bytes) -> Any:
    """Return the validator of a schema; None without jsonschema, or where the schema is none."""
    try:
        from jsonschema.validators import validator_for
    except ImportError:
        return None
    decoded = msgspec.json.decode(schema)
    kind = validator_for(decoded)
    try:
        kind.check_schema(decoded)
    except Exception:  # its own, or what a strange schema makes it raise
        return None
    return kind(decoded)
