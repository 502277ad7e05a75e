"""Fields of requests that are drawn for each: its adapter, and the format of its answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from harness.errors import UsageError
from harness.workload.planned_requests import PlannedRequest

#: The model itself among its adapters.
BASE = "base"
#: Beside the seeds of prompts.
_STREAM = 0x10A
#: Types of a `response_format`; a file with another one is a JSON schema.
_TYPES = ("json_schema", "json_object", "text", "structural_tag", "grammar")


@dataclass(frozen=True)
class DrawnFields:
    """Choices that are drawn from.

    Attributes:
        adapters: Weight of each adapter (LoRA) by its name in requests; BASE is the model without one.
        response_format: OpenAI's field of that name; None: answers are free.
        share: Share of the requests that get it.
    """

    adapters: Mapping[str, float]
    response_format: Mapping[str, Any] | None = None
    share: float = 1.0

    @classmethod
    def make(cls, adapters: Mapping[str, float], response_format: Path | None, share: float) -> Self | None:
        """Read the file of the format; None if all requests are alike.

        Raises:
            UsageError: The file cannot be used.
        """
        if not adapters and response_format is None:
            return None
        return cls(adapters, None if response_format is None else _read_format(response_format), share)

    def draw(self, requests: Sequence[PlannedRequest], seed: int) -> list[PlannedRequest]:
        """Return the requests with drawn fields: the same for the same seed, for every engine."""
        rng = np.random.default_rng([seed, _STREAM])
        names, weights = list(self.adapters), np.array(list(self.adapters.values()), float)
        adapters: list[str | None] = [None] * len(requests)
        if names:
            choices = rng.choice(len(names), len(requests), p=weights / weights.sum()).tolist()
            adapters = [None if names[i] == BASE else names[i] for i in choices]
        formatted = rng.random(len(requests)) < self.share
        return [
            replace(request, adapter=adapter, response_format=self.response_format if has_format else None)
            for request, adapter, has_format in zip(requests, adapters, formatted, strict=True)
        ]


def _read_format(path: Path) -> dict[str, Any]:
    """Read a `response_format`, or a JSON schema, which becomes one."""
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
