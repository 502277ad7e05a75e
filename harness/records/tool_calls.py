"""Tool calls of answers, checked against the tools that were offered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
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
    by the schema's `required` alone, as where the schema refers to what it does not have.
    """
    if not tools or finish_reason in CUT:
        return None, None
    calls = [] if tool_calls is None else msgspec.json.decode(tool_calls)
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    return len(calls), sum(not _fits(schemas.get(name), arguments) for name, arguments in calls)


def _fits(schema: Mapping[str, Any] | None, arguments: str) -> bool:
    try:
        values = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        return False
    if schema is None or not isinstance(values, dict):
        return False
    if (validator := _validator(msgspec.json.encode(schema))) is not None:
        with suppress(Exception):  # its own, or what a strange schema makes it raise
            return bool(validator.is_valid(values))
    return values.keys() >= {*(schema.get("required", ()) if isinstance(schema, dict) else ())}


@lru_cache(maxsize=1024)
def _validator(schema: bytes) -> Any:
    """Return the validator of a schema; None without jsonschema, or where the schema is none."""
    try:
        from jsonschema.validators import validator_for
        from referencing import Registry
    except ImportError:
        return None
    decoded = msgspec.json.decode(schema)
    kind = validator_for(decoded)
    try:
        kind.check_schema(decoded)
    except Exception:  # its own, or what a strange schema makes it raise
        return None
    return kind(decoded, registry=Registry())  # which fetches nothing
