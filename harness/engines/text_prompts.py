"""Text prompts of an exact number of tokens, for servers that take no token ids.

Decoding token ids and encoding the text again can change their number. Here a prompt consists only of tokens
that are encoded the same in any context: a space and ASCII letters, which every byte-level tokenizer splits
at the space. Equal ids give equal words, so shared prefixes stay shared; the id of such a word gives that
word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from harness.errors import EngineError
from harness.models.text_tokens import load_tokenizer

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
    """Those of a model's folder, whose tokenizer is read once: it takes a second. Raises EngineError."""
    return TextPrompts(model)
