"""Tool calls in the text of an answer, as Hermes and Qwen write them:
`<tool_call>{"name": "ls", "arguments": {"path": "."}}</tool_call>`."""

from __future__ import annotations

import random
import re
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

BEGIN, END = "<tool_call>", "</tool_call>"
#: What is read next: text, a call's name, its arguments, or what is left of it.
State = Literal["text", "call", "arguments", "end"]
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
    """Takes the calls out of the text of one answer. `count` are those so far.

    Arguments are sent as they are written, up to their last brace; the rest of the call is dropped. A call of
    another form is known when it has ended. What is no call stays text.
    """

    def __init__(self) -> None:
        self.count = 0
        self._text = self._blank = ""
        self._after_call = False
        self._state: State = "text"
        self._braces = self._dropped = 0
        self._in_string = self._escaped = False

    def push(self, text: str, reason: str | None) -> tuple[str, list[ToolCallPart]]:
        """Add `text`, the last with the finish reason. Returns what is no call, and parts of calls."""
        no_more = reason is not None or len(self._text) > _MOST
        self._text += text
        content = ""
        parts: list[ToolCallPart] = []
        before = None
        while before != (self._state, self._text):
            before = self._state, self._text
            match self._state:
                case "text":
                    content += self._sent(self._read_text(no_more))
                case "call":
                    content += self._sent(self._read_call(no_more, parts))
                case "arguments":
                    self._read_arguments(no_more, parts)
                case "end":
                    self._read_end()
        return content, parts

    def _read_text(self, no_more: bool) -> str:
        """Read up to a call, and return what is none."""
        text, tag, after = self._text.partition(BEGIN)
        held = "" if tag or no_more else _begun(text, BEGIN)
        self._text = after if tag else held
        if tag:
            self._state = "call"
        return text.removesuffix(held)

    def _read_call(self, no_more: bool, parts: list[ToolCallPart]) -> str:
        """Read up to the arguments, or a whole call of another form, and return what is none."""
        if head := _NAME.match(self._text, 0, _HEAD):
            self._new(head[1], parts)
            self._text = self._text[head.end() :]
            self._state, self._braces, self._in_string, self._escaped = "arguments", 0, False, False
            return ""
        body, tag, after = self._text.partition(END)
        if not tag and not no_more:
            return ""
        self._state, self._text = "text", after
        try:
            call = msgspec.json.decode(body, type=_Call)
        except (msgspec.DecodeError, RecursionError):
            return BEGIN + body + tag
        arguments = bytes(call.arguments).decode()
        if not arguments.startswith("{"):
            return BEGIN + body + tag
        self._new(call.name, parts)
        parts[-1].function.arguments = arguments
        return ""

    def _read_arguments(self, no_more: bool, parts: list[ToolCallPart]) -> None:
        """Read up to the brace that closes the arguments, or the end of a call in which none does."""
        length = len(self._text)
        for place, character in enumerate(self._text):
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped, self._in_string = character == "\\", character != '"'
            elif character == '"':
                self._in_string = True
            elif character == "<" and END.startswith(self._text[place : place + len(END)]):
                length = place
                if no_more or self._text.startswith(END, place):
                    self._state = "end"
                break
            elif character in "{}":
                self._braces += 1 if character == "{" else -1
                if not self._braces:
                    length, self._state = place + 1, "end"
                    break
        arguments, self._text, self._dropped = self._text[:length], self._text[length:], 0
        if arguments:
            if not parts or parts[-1].index != self.count - 1:
                parts.append(ToolCallPart(CalledPart(""), self.count - 1))
            parts[-1].function.arguments += arguments

    def _read_end(self) -> None:
        """Drop what is left of a call: of one that does not end, so much as is held back of others."""
        rest, tag, after = self._text.partition(END)
        self._dropped += len(rest)
        self._text = after if tag else _begun(rest, END)
        if tag or self._dropped > _MOST:
            self._state = "text"

    def _sent(self, content: str) -> str:
        """Return what is sent of `content` now: blanks after a call wait for a text."""
        content = self._blank + content
        self._after_call &= not content or content.isspace()
        self._blank = content if self._after_call else ""
        return content.removesuffix(self._blank)

    def _new(self, name: str, parts: list[ToolCallPart]) -> None:
        id = f"call_{random.getrandbits(96):024x}"
        parts.append(ToolCallPart(CalledPart("", name), self.count, id, "function"))
        self.count += 1
        self._after_call = True


def _begun(text: str, tag: str) -> str:
    """Return the end of `text` with which `tag` may begin."""
    return next((tag[:n] for n in range(len(tag) - 1, 0, -1) if text.endswith(tag[:n])), "")
