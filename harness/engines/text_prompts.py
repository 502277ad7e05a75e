"""Text prompts of an exact number of tokens, for servers that take no token ids.

Decoding token ids and encoding the text again changes their number. Here a prompt is written only with tokens
that stand for themselves next to each other: a space and ASCII letters, which every byte-level tokenizer
splits at the space. Equal ids give equal words, so shared prefixes stay shared; such a token gives itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from harness.errors import EngineError

_WORD = re.compile(r" [A-Za-z]+")


class TextPrompts:
    """Writes token-id prompts as text.

    Raises:
        EngineError: the model's folder has no tokenizer.json, or no tokens that stand for themselves.
    """

    def __init__(self, model: Path) -> None:
        path = model / "tokenizer.json"
        if not path.exists():
            raise EngineError(
                f"{path} does not exist, and prompts are to be text", "use a model with tokenizer.json"
            )
        self._tokenizer = Tokenizer.from_file(str(path))
        ids = range(self._tokenizer.get_vocab_size())
        decoded = self._tokenizer.decode_batch([[i] for i in ids])
        words = [(i, text) for i, text in zip(ids, decoded, strict=True) if _WORD.fullmatch(text)]
        alone = self._tokenizer.encode_batch([text for _, text in words], add_special_tokens=False)
        self._words = {i: text for (i, text), again in zip(words, alone, strict=True) if again.ids == [i]}
        self._ids = list(self._words)
        self._added = self._tokenizer.num_special_tokens_to_add(is_pair=False)
        if not self._words:
            raise EngineError(
                f"the tokenizer of {model} has no words that stand for themselves", "leave this engine out"
            )

    def of(self, prompt: Sequence[int]) -> str:
        """Text of exactly as many tokens as the prompt, those that the tokenizer adds by itself included.

        Raises:
            EngineError: the tokenizer counts otherwise.
        """
        text = "".join(self._word(i) for i in prompt[self._added :])
        if (count := len(self._tokenizer.encode(text).ids)) != len(prompt):
            raise EngineError(
                f"a prompt of {len(prompt)} tokens became {count} as text", "leave this engine out"
            )
        return text

    def tokens(self, prompt: Sequence[int]) -> list[int]:
        """The ids that `of` writes: those of which it writes the same text again. Raises EngineError."""
        ids: list[int] = self._tokenizer.encode(self.of(prompt)).ids
        return ids

    def _word(self, token: int) -> str:
        return self._words.get(token) or self._words[self._ids[token % len(self._ids)]]
