"""Renders a conversation as a prompt with the model's chat template, as transformers' `apply_chat_template`
does.

Templates come with model files, so they run in jinja2's sandbox and cannot change what they are given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from roseinfer.config import ConfigError
from roseinfer.tokenizer.configured import special_tokens, tokenizer_config

NONE: Mapping[str, Any] = MappingProxyType({})


class ChatError(Exception):
    """A request that the chat template rejects: its `field`, with a reason."""

    def __init__(self, reason: str, field: str = "messages") -> None:
        super().__init__(reason)
        self.field = field


class ChatTemplate:
    """`source` in Jinja; `special_tokens` by their names (`bos_token`, …)."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError(f"the model's chat template cannot be read: {error}") from error
        self._source, self._special_tokens = source, special_tokens

    @classmethod
    def load(cls, folder: Path) -> ChatTemplate | None:
        """From chat_template.jinja or tokenizer_config.json; None if there is none. Raises ConfigError."""
        alone = folder / "chat_template.jinja"
        try:
            config = tokenizer_config(folder)
            source = alone.read_text() if alone.is_file() else config.get("chat_template")
            if isinstance(source, list):  # several, by name
                source = next((entry["template"] for entry in source if entry["name"] == "default"), None)
            tokens = special_tokens(config)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"the chat template in {folder} cannot be read: {error}") from error
        if source is None:
            return None
        return cls(source, tokens)

    def names(self, role: str) -> bool:
        """Return whether the template compares messages' roles with `role`. One that does not may leave out
        messages of that role."""
        return re.search(rf"""role\b[^%}}]*["']{role}["']""", self._source) is not None

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        variables: Mapping[str, Any] = NONE,
        tools: Sequence[Any] | None = None,
    ) -> str:
        """The prompt, up to where the assistant's answer begins. `variables` are more of the template's, such
        as `enable_thinking` of Qwen3's. Raises ChatError."""
        inputs = {"messages": messages, "add_generation_prompt": True, "tools": tools or None}
        if reserved := inputs.keys() & variables.keys():
            raise ChatError(f"{min(reserved)} cannot be set by chat_template_kwargs", "chat_template_kwargs")
        try:
            return self._template.render({"documents": None, **self._special_tokens, **variables, **inputs})
        except (
            jinja2.TemplateError,
            TypeError,
            ValueError,
            ArithmeticError,
            LookupError,
            RecursionError,
        ) as error:
            raise ChatError(f"the model's chat template refuses the messages: {error}") from None


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what a model is trained on; rendering ignores the tags."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """The nodes between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
