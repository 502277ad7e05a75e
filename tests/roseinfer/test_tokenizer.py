"""Text to ids and back, against transformers' GPT-2 tokenizer and over any bytes."""

from __future__ import annotations

import codecs
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models

from roseinfer.tokenizer.detokenizer import StopStrings
from roseinfer.tokenizer.tokenizer import Tokenizer, load_tokenizer

LAST_ID = 50256


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    loaded = load_tokenizer("random:gpt2-tiny")
    assert loaded is not None
    return loaded


def text_of(tokenizer: Tokenizer, ids: list[int]) -> str:
    detokenizer = tokenizer.detokenizer()
    return "".join(detokenizer.push(id) for id in ids) + detokenizer.finish()


@given(text=st.text(max_size=80))
def test_streamed_text_is_the_text_that_was_encoded(tokenizer: Tokenizer, text: str) -> None:
    if "<|endoftext|>" not in text:
        assert text_of(tokenizer, tokenizer.encode(text).tolist()) == text


@given(ids=st.lists(st.integers(0, LAST_ID), max_size=40))
def test_any_ids_decode_as_the_whole_would(tokenizer: Tokenizer, ids: list[int]) -> None:
    """The pieces joined equal one decoding of all bytes, U+FFFD for what is malformed."""
    raw = b"".join(tokenizer.vocabulary.token_bytes[id] for id in ids)
    assert text_of(tokenizer, ids) == codecs.decode(raw, "utf-8", "replace")


@given(ids=st.lists(st.integers(0, LAST_ID), min_size=1, max_size=40))
def test_nothing_shown_is_taken_back(tokenizer: Tokenizer, ids: list[int]) -> None:
    """No piece ends in the middle of a character that a later token completes."""
    detokenizer = tokenizer.detokenizer()
    shown = "".join(detokenizer.push(id) for id in ids)
    assert text_of(tokenizer, ids).startswith(shown)


@given(
    pieces=st.lists(st.text("abc", max_size=4), max_size=20),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_stop_strings_cut_at_the_first_whatever_the_pieces(pieces: list[str], stops: list[str]) -> None:
    cutter = StopStrings(tuple(stops))
    shown = "".join(cutter.push(piece) for piece in pieces)
    whole = "".join(pieces)
    if cutter.found:
        assert whole.startswith(shown) and any(whole[len(shown) :].startswith(stop) for stop in stops)
        assert not any(stop in shown for stop in stops)
    else:
        assert shown + cutter.finish() == whole
        assert not any(stop in whole for stop in stops)


@given(ids=st.lists(st.integers(0, 8), max_size=12))
def test_names_of_sentencepiece_tokens(ids: list[int]) -> None:
    """Their bytes joined are what the tokenizers library decodes; a special token has only a name."""
    pieces = ["<s>", "\u2581Hello", "\u2581", "world", "\u00e9", "<0xE2>", "<0x82>", "<0xAC>", "<0x41>"]
    vocab = {piece: id for id, piece in enumerate(pieces)}
    fast = FastTokenizer(models.BPE(vocab, [], byte_fallback=True))
    fast.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    fast.add_special_tokens(["<s>"])
    names = Tokenizer(fast).names
    assert [names[id].text for id in range(9)] == [
        "<s>", " Hello", " ", "world", "\u00e9", "\\xe2", "\\x82", "\\xac", "A"
    ]  # fmt: skip
    raw = bytes(byte for id in ids for byte in names[id].bytes or ())
    if "\ufffd" not in raw.decode(errors="replace"):
        assert raw.decode() == fast.decode(ids, skip_special_tokens=True)
    assert names[0].bytes is None and names[9].text == "token_id:9"


def test_other_threads_run_while_a_long_text_is_encoded(tokenizer: Tokenizer) -> None:
    with ThreadPoolExecutor(1) as pool:
        begun = last = time.monotonic()
        encoding = pool.submit(tokenizer.encode, "A text that takes its time. " * 60_000)
        longest = 0.0
        while not encoding.done():
            now = time.monotonic()
            longest, last = max(longest, now - last), now
        assert longest < (time.monotonic() - begun) / 2
