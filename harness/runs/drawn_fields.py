"""What is drawn for each request of a run beside its prompt, from the settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.schema.online_settings import OnlineSettings
from harness.workload.drawn_fields import DrawnFields

#: What `response_format` may be without a schema.
_TYPES = ("json_schema", "json_object", "text", "structural_tag", "grammar")


def drawn_fields(settings: OnlineSettings) -> DrawnFields | None:
    """None where all requests are alike. Raises UsageError where the file of the format cannot be used."""
    if not settings.lora and settings.response_format is None:
        return None
    given = None if settings.response_format is None else _read(settings.response_format)
    return DrawnFields(settings.lora, given, settings.response_format_share)


def _read(path: Path) -> dict[str, Any]:
    """A `response_format`, or a JSON schema, which becomes one."""
    hint = "write OpenAI's response_format or a JSON schema into it"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--response-format {path}: {error.strerror}", "name a JSON file") from None
    except ValueError as error:
        raise UsageError(f"--response-format {path} is not JSON: {error}", hint) from None
    if not isinstance(content, dict):
        raise UsageError(f"--response-format {path} is no JSON object", hint)
    if content.get("type") in _TYPES:
        return content
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": content, "strict": True}}
