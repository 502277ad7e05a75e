"""Incremental detokenization: token ids to text, as they are generated."""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat

import msgspec
from tokenizers import Tokenizer as FastTokenizer

#: Tokens after which what they decode to is shown even if it ends in U+FFFD: no character has so many bytes.
_MOST_HELD = 16


class Vocabulary(dict[int, "bytes | None"]):
    """For byte-level vocabularies: each token's text, escaped for a JSON string, computed when first needed.

    None for a token that is not whole characters; ids outside the vocabulary have an empty text.
    """

    def __init__(self, token_bytes: list[bytes]) -> None:
        super().__init__()
        self.token_bytes = token_bytes

    def fill(self) -> None:
        """Compute all of them now: about 50 ms for GPT-2's 50,257 tokens."""
        for token in range(len(self.token_bytes)):
            self[token]

    def __missing__(self, token: int) -> bytes | None:
        data = self.token_bytes[token] if token < len(self.token_bytes) else b""
        try:
            escaped = msgspec.json.encode(data.decode())[1:-1]
        except UnicodeDecodeError:
            escaped = None
        self[token] = escaped
        return escaped


class Detokenizer(ABC):
    """The text of one answer. Bytes that may still become another character are held back.

    While it is `clean` nothing is held back, and a token that has a text in `escaped` need not be pushed.
    """

    clean: bool
    escaped: Vocabulary

    @abstractmethod
    def push(self, token: int) -> str:
        """The text that `token` completes; ids outside the vocabulary have none."""

    @abstractmethod
    def finish(self) -> str:
        """The text that was held back."""


class ByteDetokenizer(Detokenizer):
    """For byte-level vocabularies, whose tokens are UTF-8 bytes; malformed ones become U+FFFD. `strip`: drop
    the space that the text begins with. `before`: the last tokens of the text that this one follows; a
    character that they begin is completed."""

    def __init__(self, vocabulary: Vocabulary, *, strip: bool = False, before: Sequence[int] = ()) -> None:
        self._bytes, self._strip = vocabulary.token_bytes, strip
        self._begun = _begun(self._bytes, before)  # until the first bytes of the text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decoder.decode(self._begun)
        self.clean, self.escaped = not strip and not self._begun, vocabulary

    def push(self, token: int) -> str:
        data = self._bytes[token] if token < len(self._bytes) else b""
        if self._begun and data:
            if codecs.utf_8_decode(self._begun + data[:1], "replace")[0].startswith("\ufffd"):
                self._decoder.reset()  # not completed: U+FFFD is the other text's
            self._begun = b""
        text = self._decoder.decode(data)
        if self._strip and text:
            text, self._strip = text.removeprefix(" "), False
        self.clean = not self._strip and not self._decoder.getstate()[0]
        return text

    def finish(self) -> str:
        return "" if self._begun else self._decoder.decode(b"", final=True)


class WindowDetokenizer(Detokenizer):
    """For any other vocabulary: the last tokens are decoded with and without the newest, and what that adds
    is shown unless it ends in U+FFFD. (The library's DecodeStream does the same, and raises where a token
    changes the text before it.)

    `token_bytes`: the bytes of each token id. A token without bytes has no text, and is not decoded.
    `before`: the last tokens of the text that this one follows; as many are decoded as make a character, and
    one that they begin is completed.
    """

    def __init__(
        self, tokenizer: FastTokenizer, token_bytes: Sequence[bytes], before: Sequence[int] = ()
    ) -> None:
        self.clean, self.escaped = False, Vocabulary([])
        self._tokenizer, self._token_bytes = tokenizer, token_bytes
        self._window = self._end_of(before)
        self._old, self._shown = len(self._window), self._text()  # tokens whose text is shown, and this text

    def push(self, token: int) -> str:
        if token >= len(self._token_bytes) or not self._token_bytes[token]:
            return ""
        self._window.append(token)
        text = self._text()
        incomplete = text.endswith("\ufffd") and len(self._window) - self._old < _MOST_HELD
        if incomplete or not (shown := self._new(text)):
            return ""
        if not self._completes(text):  # the character that the older tokens begin
            del self._window[: self._old]
        self._old, self._shown = len(self._window), self._text()
        return shown

    def finish(self) -> str:
        return self._new(self._text())

    def _end_of(self, before: Sequence[int]) -> list[int]:
        """The last tokens of `before` that make a character, or those of the one that they begin."""
        if begun := len(_begun(self._token_bytes, before)):
            return [*before[-begun:]]  # a token a byte
        ends = ([*before[begin:]] for begin in reversed(range(len(before))))
        return next((end for end in ends if not self._decoded(end).endswith("\ufffd")), [])

    def _new(self, text: str) -> str:
        """The part of `text` that is not shown yet, with a character that was shown in part."""
        shown = self._shown.rstrip("\ufffd") if self._completes(text) else self._shown
        return text[len(shown) :]

    def _completes(self, text: str) -> bool:
        """Return whether `text` has a character of which only a part is seen."""
        return self._shown.endswith("\ufffd") and not text.startswith(self._shown)

    def _text(self) -> str:
        return self._decoded(self._window)

    def _decoded(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True)


def _begun(token_bytes: Sequence[bytes], tokens: Sequence[int]) -> bytes:
    """The bytes of a character that `tokens` begin and do not end."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(b"".join(token_bytes[token] for token in tokens)[-3:])
    return decoder.getstate()[0]


class StopStrings:
    """Ends a text at the first stop string, holding back what may become one."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.stops = stops
        self._held_back = ""
        self._matched = [0] * len(stops)  # characters of each stop string with which the text ends
        self.matched = False

    def push(self, text: str, counts: bool = True) -> str:
        """Add `text`. Returns what can be shown now; nothing more once a stop string is `found`.

        Args:
            counts: Whether a stop string that ends in `text` counts, wherever it begins.
        """
        if not self.stops:
            return text
        if self.matched:
            return ""
        before, new, text = len(self._held_back), text, self._held_back + text
        begins = (max(0, before - len(stop) + 1) for stop in self.stops)  # to end after what was kept
        places = map(text.find, self.stops, begins)
        if counts and (cuts := [at for at in places if at >= 0]):
            self.matched, self._held_back = True, ""
            return text[: min(cuts)]
        self._matched = [*map(_matched, self.stops, self._matched, repeat(new))]
        keep = max(self._matched)
        self._held_back = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """The text that was held back and became no stop string."""
        held_back, self._held_back = self._held_back, ""
        return held_back


def _matched(stop: str, matched: int, text: str) -> int:
    """The length of the longest proper prefix of `stop` that a text ends with once `text` follows; before, it
    was `matched`. Takes time in proportion to `text` (Knuth, Morris and Pratt, 1977)."""
    if not matched:
        begin = text.find(stop[0])
        if begin < 0 or len(stop) == 1:
            return 0
        text = text[begin:]
    shorter = _borders(stop)
    for character in text:
        while matched and stop[matched] != character:
            matched = shorter[matched]
        matched += stop[matched] == character
        if matched == len(stop):
            matched = shorter[matched]
    return matched


@lru_cache(256)
def _borders(stop: str) -> list[int]:
    """For each length of a prefix of `stop`, the longest shorter prefix that it ends with."""
    borders, border = [0, 0], 0
    for character in stop[1:]:
        while border and stop[border] != character:
            border = borders[border]
        border += stop[border] == character
        borders.append(border)
    return borders
