"""Tool calls in the text of an answer, as Hermes and Qwen write them:
`<tool_call>{"name": "ls", "arguments": {"path": "."}}</tool_call>`."""

from __future__ import annotations

import random
import re

import msgspec
from msgspec import UNSET, UnsetType

BEGIN, END = "<tool_call>", "</tool_call>"
_NAME = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"arguments"\s*:\s*(?=\{)')
#: Characters within which the arguments must begin, to be sent as they come.
_HEAD = 1024
#: Characters of a call that are held back at most: what needs more is none.
_MOST = 1 << 16


class CalledPart(msgspec.Struct, omit_defaults=True):
    """The name and the arguments of a function, or more of its arguments."""

    arguments: str
    name: str | UnsetType = UNSET


class ToolCallPart(msgspec.Struct, omit_defaults=True):
    """A tool call, or the part of it in a chunk; `index`: which of the answer's calls, in a chunk."""

    function: CalledPart
    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class ToolCalls:
    """Takes the calls out of the text of one answer. `count` are those so far."""

    def __init__(self) -> None:
        self.count = 0
        self._text = self._blank = ""
        self._inside = self._named = self._after_call = False

    def push(self, text: str, reason: str | None) -> tuple[str, list[ToolCallPart]]:
        """Add `text`, the last with the finish reason. Returns what is no call, and parts of calls."""
        too_long = len(self._text) > _MOST
        self._text += text
        content = ""
        parts: list[ToolCallPart] = []
        while self._inside or self._text:
            tag = END if self._inside else BEGIN
            before, tag_found, after = self._text.partition(tag)
            ended = bool(tag_found) or reason is not None or too_long
            if self._inside:
                left = self._call(before, ended, reason == "length" and not tag_found, parts)
                if ended and left:  # it was no call
                    content += self._sent(BEGIN + left + tag_found)
            else:
                left = "" if ended else _begun(before, tag)
                content += self._sent(before.removesuffix(left))
            self._text = after if tag_found else "" if ended else left
            self._inside = self._inside != bool(tag_found)
            if not tag_found:
                self._inside &= not ended
                break
            self._named = False
        return content, parts

    def _sent(self, content: str) -> str:
        """Return what is sent of `content` now: blanks after a call wait for a text."""
        content = self._blank + content
        self._after_call &= not content or content.isspace()
        self._blank = content if self._after_call else ""
        return content.removesuffix(self._blank)

    def _call(self, body: str, ended: bool, cut: bool, parts: list[ToolCallPart]) -> str:
        """Read more of a call, and return what is left of it: of a call that has `ended` nothing, if it was
        one. It may be `cut` by the length of the answer."""
        if not self._named and len(body) <= _HEAD and (head := _NAME.match(body)):
            self._new(head[1], parts)
            body, self._named = body[head.end() :], True
        if self._named:
            left = "" if cut else _end(body, ended)
            if arguments := body.removesuffix(left):
                if not parts or parts[-1].index != self.count - 1:
                    parts.append(ToolCallPart(CalledPart(""), self.count - 1))
                parts[-1].function.arguments += arguments
            return "" if ended else left
        if ended:
            try:
                call = msgspec.json.decode(body, type=_Call)
            except (msgspec.DecodeError, RecursionError):
                return body
            arguments = bytes(call.arguments).decode()
            if not arguments.startswith("{"):
                return body
            self._new(call.name, parts)
            parts[-1].function.arguments = arguments
            return ""
        return body

    def _new(self, name: str, parts: list[ToolCallPart]) -> None:
        id = f"call_{random.getrandbits(96):024x}"
        parts.append(ToolCallPart(CalledPart("", name), self.count, id, "function"))
        self.count += 1
        self._after_call = True


def _begun(text: str, tag: str) -> str:
    """Return the end of `text` with which `tag` may begin."""
    return next((tag[:n] for n in range(len(tag) - 1, 0, -1) if text.endswith(tag[:n])), "")


def _end(body: str, ended: bool) -> str:
    """Return the end of `body` that may be no arguments: the last brace, and what may begin a tag."""
    inner = (body if ended else body.removesuffix(_begun(body, END))).rstrip()
    return body[len(inner.removesuffix("}")) :]
