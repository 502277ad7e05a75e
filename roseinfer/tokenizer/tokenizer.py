"""The tokenizer of a model folder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers

from roseinfer.config import ConfigError
from roseinfer.model_folder import model_folder
from roseinfer.tokenizer.configured import add_configured, tokenizer_config
from roseinfer.tokenizer.detokenizer import ByteDetokenizer, Detokenizer, Vocabulary, WindowDetokenizer
from roseinfer.tokenizer.token_names import TokenNames

#: The decoder of byte-fallback vocabularies, step by step (Gemma's), and one step more that Llama 2's has:
#: the text is that of `_piece_bytes` one after the other.
_PIECES = [
    {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
_STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}

#: Characters of a long text, for each token of the limit, that are tokenized first: twice those of common
#: texts.
_PROBE = 8


class Tokenizer:
    """Tokenizes whole texts, and makes a detokenizer for each answer."""

    def __init__(self, tokenizer: FastTokenizer) -> None:
        self.library = tokenizer
        tokenizer.no_truncation()  # the file may have training settings
        tokenizer.no_padding()
        decoder = {} if tokenizer.decoder is None else json.loads(tokenizer.decoder.__getstate__())
        steps = decoder.get("decoders")
        pieces, self._strip = steps in (_PIECES, [*_PIECES, _STRIP]), steps == [*_PIECES, _STRIP]
        self.vocabulary: Vocabulary | None = None
        if pieces or decoder.get("type") == "ByteLevel":
            self.vocabulary = Vocabulary((_piece_bytes if pieces else _token_bytes)(tokenizer))

    @classmethod
    def load(cls, folder: Path) -> Tokenizer | None:
        """From tokenizer.json, or GPT-2's vocab.json and merges.txt, with the tokens that the folder's
        tokenizer_config.json adds; None if the folder has neither.

        Raises ConfigError when they cannot be read, or have only the vocabulary of another family.
        """
        whole, vocab, merges = (folder / name for name in ("tokenizer.json", "vocab.json", "merges.txt"))
        try:
            if not whole.is_file() and not (vocab.is_file() and merges.is_file()):
                return None
            config = tokenizer_config(folder)
            tokenizer = FastTokenizer.from_file(str(whole)) if whole.is_file() else _gpt2(folder, config)
            add_configured(tokenizer, config)
            return cls(tokenizer)
        except ConfigError:
            raise
        except Exception as error:  # the library raises plain Exception
            raise ConfigError(f"the tokenizer in {folder} cannot be read: {error}") from error

    def encode(self, text: str, special_tokens: bool = True) -> NDArray[np.int32]:
        """Token ids `[n]`; with `special_tokens` also those that the tokenizer adds by itself.

        Other threads run meanwhile: the library's call for a single text would hold the GIL.
        """
        (encoding,) = self.library.encode_batch_fast([text], add_special_tokens=special_tokens)
        return np.array(encoding.ids, dtype=np.int32)

    def pieces(self, text: str, special_tokens: bool = True) -> list[str]:
        """For each token of `encode`, the part of `text` that it stands for, whatever the tokenizer makes of
        that. All of them joined are `text`; of several tokens of a character, the last has it."""
        (encoding,) = self.library.encode_batch([text], add_special_tokens=special_tokens)
        begins: list[int] = []
        reached = 0  # where the furthest token ends
        for start, end in encoding.offsets:
            if start == end:  # the tokenizer adds this token
                start = end = reached
            # What normalizers drop belongs to the token before it, but spaces to the next.
            begins.append(min(start, reached) + len(text[reached:start].rstrip()))
            reached = max(reached, end)
        return [text[begin:end] for begin, end in pairwise([0, *begins[1:], len(text)])]

    def encode_within(self, most: int, text: str, special_tokens: bool = True) -> NDArray[np.int32] | None:
        """Encode as `encode` does; None for a text that surely has more than `most` tokens: then only a
        beginning with twice as many is tokenized."""
        length = _PROBE * most
        while length < len(text):
            if len(self.encode(text[:length], special_tokens)) > 2 * most:
                return None
            length *= 4
        return self.encode(text, special_tokens)

    def detokenizer(self, after: Sequence[int] | NDArray[np.int32] = ()) -> Detokenizer:
        """A detokenizer for a text that follows the text of the tokens `after`: many vocabularies write the
        first word of a text as any other, with a space before it that the text does not have. A character
        that `after` begins is completed, and is in this text."""
        before = self._last_with_text(after)
        if self.vocabulary is None:
            return WindowDetokenizer(self.library, self.token_bytes, before)
        return ByteDetokenizer(self.vocabulary, strip=self._strip and not before, before=before)

    def _last_with_text(self, tokens: Sequence[int] | NDArray[np.int32]) -> list[int]:
        """The last tokens that have a text, in their order, at most 4: a character has up to 4 bytes."""
        token_bytes = self.token_bytes
        printable = (
            int(token) for token in reversed(tokens) if token < len(token_bytes) and token_bytes[token]
        )
        return [*islice(printable, 4)][::-1]

    @cached_property
    def longest(self) -> int:
        """An upper bound of the characters of a token; four times the longest token's where the tokenizer
        normalizes texts, as composing characters can make them fewer."""
        vocabulary = self.library.get_vocab(with_added_tokens=True)
        return max(map(len, vocabulary)) * (1 if self.library.normalizer is None else 4)

    @cached_property
    def names(self) -> TokenNames:
        """Names of single tokens."""
        return TokenNames(self.token_bytes, _special(self.library))

    @cached_property
    def token_bytes(self) -> list[bytes]:
        """The bytes of each token id; special tokens have none."""
        return _piece_bytes(self.library) if self.vocabulary is None else self.vocabulary.token_bytes


def load_tokenizer(model: str) -> Tokenizer | None:
    """The tokenizer of `model`; None if its folder has none. Raises ConfigError."""
    return Tokenizer.load(model_folder(model))


def _gpt2(folder: Path, config: dict[str, Any]) -> FastTokenizer:
    """GPT-2's tokenizer. Raises ConfigError for another family's: how that cuts texts into words is in
    tokenizer.json alone."""
    family = json.loads((folder / "config.json").read_text()).get("model_type")
    kind = config.get("tokenizer_class")
    if family != "gpt2" or kind not in (None, "GPT2Tokenizer", "GPT2TokenizerFast"):
        raise ConfigError(
            f"{folder} has no tokenizer.json, and its vocab.json and merges.txt are not GPT-2's (model_type "
            f"{family!r}, tokenizer_class {kind!r}); load the tokenizer with transformers' AutoTokenizer and "
            "save it there with save_pretrained, which writes tokenizer.json"
        )
    tokenizer = FastTokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    prefix = bool(config.get("add_prefix_space"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def _token_bytes(tokenizer: FastTokenizer) -> list[bytes]:
    """The bytes of each token id; special tokens have none."""
    byte_of = {character: byte for byte, character in _byte_characters().items()}

    def encoded(token: str) -> bytes:
        try:
            return bytes(map(byte_of.__getitem__, token))
        except KeyError:
            return token.encode()

    return _table(tokenizer, encoded)


def _piece_bytes(tokenizer: FastTokenizer) -> list[bytes]:
    """Return what `_token_bytes` does, for SentencePiece's pieces: U+2581 is a space, `<0xNN>` a byte."""

    def encoded(token: str) -> bytes:
        byte = re.fullmatch("<0x([0-9A-F]{2})>", token)
        return bytes.fromhex(byte[1]) if byte else token.replace("\u2581", " ").encode()

    return _table(tokenizer, encoded)


def _table(tokenizer: FastTokenizer, encoded: Callable[[str], bytes]) -> list[bytes]:
    special, vocab = _special(tokenizer), tokenizer.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocab.values()) + 1)
    for token, id in vocab.items():
        if id not in special:
            table[id] = encoded(token)
    return table


def _special(tokenizer: FastTokenizer) -> dict[int, str]:
    """The special tokens: they have a name and no text."""
    return {id: added.content for id, added in tokenizer.get_added_tokens_decoder().items() if added.special}


def _byte_characters() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte (Radford et al. 2019, encoder.py)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
