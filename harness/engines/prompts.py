"""Prompts as requests have them: token ids, text, or messages of a chat."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import msgspec

from harness.errors import EngineError
from harness.models.text_tokens import COMMON_WORDS, ChatTemplate, load_tokenizer
from harness.schema.online_settings import Endpoint
from harness.workload import Message, PlannedRequest

#: How often the number of words is corrected by what it made of the length.
_CORRECTIONS = 4


@dataclass(frozen=True)
class Lengths:
    """Length of a prompt as a server counts it: `offset + each * n` where we count `n`.

    `n` is tokens where the tokenizer is known, else words. `exact`: two texts of different lengths showed
    that each of them is one token for the server.
    """

    offset: int = 0
    each: float = 1.0
    exact: bool = True

    def tokens(self, n: int) -> int:
        """Convert our count to the server's."""
        return round(self.offset + self.each * n)


#: The server counts what we count.
AS_COUNTED = Lengths()


class Prompts(Protocol):
    """Writes the prompt of each request of a run."""

    def fields(self, request: PlannedRequest) -> dict[str, Any]:
        """The fields of the body with the prompt. Raises EngineError where it cannot be written."""

    def tokens(self, request: PlannedRequest) -> int | None:
        """Tokens of the prompt as the server counts them; None where only the server can say."""


class TokenIds:
    """Prompts as lists of token ids. Text that has no ids is sent as text."""

    def fields(self, request: PlannedRequest) -> dict[str, Any]:
        ids: list[int] = request.prompt.tolist()
        return {"prompt": request.text if request.text is not None and not ids else ids}

    def tokens(self, request: PlannedRequest) -> int | None:
        return len(request.prompt) or None


class Texts(TokenIds):
    """Text of as many tokens, by the tokenizer in the folder `model`. Raises EngineError without one."""

    def __init__(self, model: Path) -> None:
        self._text = text_prompts(model)

    def fields(self, request: PlannedRequest) -> dict[str, Any]:
        return {"prompt": request.text or self._text.of(request.prompt.tolist())}


class Words:
    """Text of as many tokens as planned by a count of our own: of a chat through its template, or of words.

    Equal token ids become equal words, so shared prefixes stay shared. The shortest prompt is one word: what
    a template adds cannot be left out, and a shorter prompt that was planned is sent as that.

    Args:
        endpoint: All but completions get messages, or one message of a user.
        model: Folder of the tokenizer, whose template counts in a chat; None: unknown, words are counted.
        lengths: How the server counts.
        most: Texts that are held, so that a request's body and its length are written once.

    Raises:
        EngineError: The folder has no tokenizer or no template.
    """

    def __init__(self, endpoint: Endpoint, model: Path | None, lengths: Lengths, most: int = 1 << 15) -> None:
        self._endpoint = endpoint
        self._lengths, self._most = lengths, most
        self._texts: dict[bytes, str] = {}
        self._template = None
        self._word: Callable[[int], str] = lambda token: COMMON_WORDS[token % len(COMMON_WORDS)]
        if model is not None:
            self._template = ChatTemplate(model)
            self._word = text_prompts(model).word

    def fields(self, request: PlannedRequest) -> dict[str, Any]:
        if self._endpoint == "completions":
            return {"prompt": self._text(request)}
        messages, tools = self._messages(request), request.tools
        if self._endpoint == "responses":
            fields: dict[str, Any] = {"input": [item for message in messages for item in _items(message)]}
            tools = tuple({"type": "function", **tool["function"]} for tool in tools)
        elif self._endpoint == "messages":
            system = messages[0]["content"] if messages[0]["role"] == "system" else None
            fields = {} if system is None else {"system": system}
            fields["messages"] = _turns(messages if system is None else messages[1:])
            tools = tuple(_anthropic_tool(**tool["function"]) for tool in tools)
        else:
            fields = {"messages": messages}
        return {**fields, "tools": tools} if tools else fields

    def tokens(self, request: PlannedRequest) -> int | None:
        if not self._lengths.exact or request.tools or any("tool_calls" in m for m in request.messages or ()):
            return None  # engines write tools into a prompt in ways of their own
        if self._template is not None:
            messages = self._messages(request)
            if self._lengths.offset and messages[0]["role"] == "system":
                return None  # the other template may differ in the system's message that it adds without one
            return self._lengths.tokens(self._template.tokens(messages))
        if request.text is not None or request.messages is not None:
            return None
        return self._lengths.tokens(self._count(self._text(request)))

    def _messages(self, request: PlannedRequest) -> Sequence[Message]:
        if request.messages is not None:
            return request.messages
        return [_user(self._text(request))]

    def _text(self, request: PlannedRequest) -> str:
        if request.text is not None:
            return request.text
        key = request.prompt.tobytes()
        if key not in self._texts:
            if len(self._texts) >= self._most:
                self._texts.clear()
            self._texts[key] = self._write(request.prompt.tolist())
        return self._texts[key]

    def _write(self, prompt: Sequence[int]) -> str:
        words = [self._word(token).strip() for token in prompt]
        count = len(words)
        text = " ".join(words)
        for _ in range(_CORRECTIONS):
            over = self._lengths.tokens(self._count(text)) - len(prompt)
            if over == 0 or (count == 1 and over > 0):
                break
            count = min(max(1, count - round(over / self._lengths.each)), 2 * len(words))
            text = " ".join((words + words)[:count])
        return text

    def _count(self, text: str) -> int:
        return len(text.split()) if self._template is None else self._template.tokens([_user(text)])


def of_words(count: int, first: int = 0) -> str:
    """Write `count` common words, from the one at `first` on."""
    return " ".join(COMMON_WORDS[(first + i) % len(COMMON_WORDS)] for i in range(count))


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _items(message: Message) -> list[dict[str, Any]]:
    """Return a message as items of the Responses API, where calls and results are items of their own."""
    if message["role"] == "tool":
        output = {"call_id": message.get("tool_call_id"), "output": message["content"]}
        return [{"type": "function_call_output", **output}]
    text = {"role": message["role"], "content": message["content"]}
    calls = [
        {"type": "function_call", "call_id": call["id"], **call["function"]}
        for call in message.get("tool_calls") or ()
    ]
    return [text, *calls] if message["content"] or not calls else calls


def _turns(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages as turns of the Messages API: results in a row are one turn of the user."""
    turns: list[dict[str, Any]] = []
    last = ""
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "tool":
            result = {"type": "tool_result", "tool_use_id": message.get("tool_call_id"), "content": content}
            if last != "tool":
                turns.append({"role": "user", "content": []})
            turns[-1]["content"].append(result)
        elif calls := message.get("tool_calls"):
            uses = (
                {"type": "tool_use", "id": call["id"], "name": call["function"]["name"],
                 "input": _input(call["function"]["arguments"])} for call in calls
            )  # fmt: skip
            texts = [{"type": "text", "text": content}] if content else []
            turns.append({"role": role, "content": [*texts, *uses]})
        else:
            turns.append({"role": role, "content": content})
        last = role
    return turns


def _input(arguments: str) -> Any:
    """Return the arguments of a call as JSON; a marker for those of a live answer as it is."""
    try:
        return msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        return arguments


def _anthropic_tool(name: str, parameters: object = None, **fields: Any) -> dict[str, Any]:
    return {"name": name, **fields, "input_schema": parameters or {"type": "object"}}


_WORD = re.compile(r" [A-Za-z]+")


class TextPrompts:
    """Writes token-id prompts as text.

    Raises:
        EngineError: the model's folder has no tokenizer.json, or its tokenizer has no such words.
        UsageError: the tokenizer cannot be read.
    """

    def __init__(self, model: Path) -> None:
        tokenizer = load_tokenizer(model)
        if tokenizer is None:
            raise EngineError(
                f"{model / 'tokenizer.json'} is missing, and prompts are sent as text",
                "use a model with a tokenizer.json",
            )
        self._tokenizer = tokenizer
        ids = range(self._tokenizer.get_vocab_size())
        decoded = self._tokenizer.decode_batch([[i] for i in ids])
        words = [(i, text) for i, text in zip(ids, decoded, strict=True) if _WORD.fullmatch(text)]
        alone = self._tokenizer.encode_batch([text for _, text in words], add_special_tokens=False)
        self._words = {i: text for (i, text), again in zip(words, alone, strict=True) if again.ids == [i]}
        self._ids = list(self._words)
        self._added = self._tokenizer.num_special_tokens_to_add(is_pair=False)
        if not self._words:
            raise EngineError(
                f"the tokenizer of {model} has no words of one token, which text prompts need",
                "leave out --text-prompts, or the engines that take only text",
            )

    def of(self, prompt: Sequence[int]) -> str:
        """Text of exactly as many tokens as the prompt, including those that the tokenizer adds.

        Raises:
            EngineError: the text has another number of tokens.
        """
        text = "".join(self.word(i) for i in prompt[self._added :])
        if (count := len(self._tokenizer.encode(text).ids)) != len(prompt):
            raise EngineError(
                f"a prompt of {len(prompt)} tokens became {count} tokens as text",
                "leave out --text-prompts, or the engines that take only text",
            )
        return text

    def tokens(self, prompt: Sequence[int]) -> list[int]:
        """The token ids of the text that `of` writes. Raises EngineError."""
        ids: list[int] = self._tokenizer.encode(self.of(prompt)).ids
        return ids

    def word(self, token: int) -> str:
        """A word of one token, with the space before it; equal ids give equal words."""
        return self._words.get(token) or self._words[self._ids[token % len(self._ids)]]


@cache
def text_prompts(model: Path) -> TextPrompts:
    """Return the text prompts of a model's folder. Its tokenizer is read once: it takes a second. Raises
    EngineError."""
    return TextPrompts(model)
