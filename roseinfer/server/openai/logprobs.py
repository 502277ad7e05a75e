"""Logprobs in OpenAI's formats: one entry for every token of an answer."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from roseinfer.request.logprobs import TokenLogprobs
from roseinfer.tokenizer.token_names import TokenName, TokenNames

#: Tokens with their logprobs: the token that was taken, then the most likely ones in descending order.
Named = Iterator[tuple[TokenName, float]]


class CompletionLogprobs(msgspec.Struct):
    """For /v1/completions. `top_logprobs`: the token taken and the most likely ones; `text_offset`: where in
    the answer's text a token begins, in characters. The first token of a prompt has no logprob."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []

    def add(self, named: Named, offset: int) -> None:
        """The next token."""
        top: dict[str, float] = {}
        for name, logprob in named:
            top.setdefault(_legacy(name), logprob)
        taken = next(iter(top))
        self.tokens.append(taken)
        self.token_logprobs.append(top[taken])
        self.top_logprobs.append(top)
        self.text_offset.append(offset)

    def add_first(self, name: TokenName, offset: int) -> None:
        """The first token of a prompt."""
        self.tokens.append(_legacy(name))
        self.token_logprobs.append(None)
        self.top_logprobs.append(None)
        self.text_offset.append(offset)


class TopLogprob(msgspec.Struct, frozen=True):
    """One of the most likely tokens."""

    token: str
    logprob: float
    bytes: list[int] | None


class ContentLogprob(msgspec.Struct, frozen=True):
    """A token that was taken; `bytes` of several tokens joined are the UTF-8 of their text."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """For /v1/chat/completions."""

    content: list[ContentLogprob] = []
    refusal: None = None

    def add(self, named: Named, offset: int) -> None:
        """The next token."""
        (taken, logprob), *likeliest = named
        top = [TopLogprob(name.text, value, name.bytes) for name, value in likeliest]
        self.content.append(ContentLogprob(taken.text, logprob, taken.bytes, top))


Logprobs = CompletionLogprobs | ChatLogprobs


class ChoiceLogprobs:
    """Collects the logprobs of one choice, with `count` top tokens each, until they are sent."""

    def __init__(self, form: type[Logprobs], count: int, names: TokenNames) -> None:
        self._form, self._count, self._names = form, count, names
        self._collected, self._offset = form(), 0

    def add(self, logprobs: TokenLogprobs) -> None:
        """Add the next token's logprobs."""
        end, names = 1 + self._count, self._names
        tokens, values = logprobs.tokens[:end], logprobs.values[:end]
        named = ((names[token], value) for token, value in zip(tokens, values, strict=True))
        self._collected.add(named, self._offset)

    def add_prompt(self, token: int, logprobs: TokenLogprobs | None) -> None:
        """Add the next prompt token's logprobs; None: it is the first token."""
        if logprobs is not None:
            self.add(logprobs)
        elif isinstance(self._collected, CompletionLogprobs):
            self._collected.add_first(self._names[token], self._offset)

    def extend(self, text: str) -> None:
        """Advance the text offset by `text`, which includes a stop string."""
        self._offset += len(text)

    def take(self) -> Logprobs:
        """The logprobs of the tokens since the last call."""
        collected, self._collected = self._collected, self._form()
        return collected


def _legacy(name: TokenName) -> str:
    """The token's name in completions, which have no field for bytes."""
    return name.text if name.whole else f"bytes:{name.text}"
