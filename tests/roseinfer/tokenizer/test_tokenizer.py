"""Text to ids and back, against transformers' GPT-2 tokenizer and over any bytes."""

from __future__ import annotations

import codecs
import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer

from roseinfer.config import ConfigError
from roseinfer.tokenizer.detokenizer import StopStrings, WindowDetokenizer
from roseinfer.tokenizer.tokenizer import Tokenizer, load_tokenizer

LAST_ID = 50256


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    loaded = load_tokenizer("random:gpt2-tiny")
    return loaded


def text_of(tokenizer: Tokenizer, ids: list[int]) -> str:
    detokenizer = tokenizer.detokenizer()
    return "".join(detokenizer.push(id) for id in ids) + detokenizer.finish()


def test_truncation_and_padding_of_a_training_do_not_reach_prompts(tmp_path: Path) -> None:
    plain = FastTokenizer(models.BPE({chr(97 + i): i for i in range(26)}, []))
    plain.enable_truncation(4)
    plain.enable_padding(length=8, pad_id=25)
    plain.save(str(tmp_path / "tokenizer.json"))
    loaded = Tokenizer.load(tmp_path)
    assert loaded.encode("abcdefghij").tolist() == list(range(10))
    assert loaded.encode("ab").tolist() == [0, 1]


@pytest.mark.parametrize(
    ("kind", "text", "wanted"),
    [
        (normalizers.NFC(), "ae\u0301 b", ["a", "", "e\u0301", " b"]),
        (normalizers.Lowercase(), "A  B", ["A", " ", " B"]),
        (normalizers.Strip(), "  a b ", ["  a", " b "]),
        (pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False), "a b", ["a", " b"]),
        (processors.ByteLevel(trim_offsets=True), "a b", ["a", " b"]),
        (
            processors.TemplateProcessing("<s> $A <s>", special_tokens=[("<s>", 0)]),
            "<s>b", ["", "<s>", "b", ""],
        ),
    ],
)  # fmt: skip
def test_the_pieces_of_a_prompt_are_as_it_was_sent(tmp_path, kind, text, wanted):
    """Also where a tokenizer normalizes, adds and trims; the bytes of é are two tokens."""
    vocabulary = {"<s>": 0} | {character: 1 + i for i, character in enumerate("abĠÃ©ABeÌģ")}
    vocabulary |= {"Ġa": 20, "Ġb": 21}
    tokenizer = FastTokenizer(models.BPE(vocabulary, [("Ġ", "a"), ("Ġ", "b")]))
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    place = {"normalizers": "normalizer", "pre_tokenizers": "pre_tokenizer", "processors": "post_processor"}
    setattr(tokenizer, place[type(kind).__module__.rpartition(".")[2]], kind)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = Tokenizer.load(tmp_path)
    pieces = loaded.pieces(text)
    assert len(pieces) == len(loaded.encode(text)) and "".join(pieces) == text
    assert pieces == wanted


@pytest.fixture
def slow_folder(text_model: Any, tmp_path: Path) -> Path:
    """A folder as transformers' slow tokenizers of several families save it, without tokenizer.json."""
    for name in ("config.json", "vocab.json", "merges.txt"):
        shutil.copy(text_model.folder / name, tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("family", "kind"), [("qwen2", "GPT2Tokenizer"), ("qwen3", None), ("gpt2", "Qwen2Tokenizer")]
)
def test_another_familys_vocabulary_is_not_read_as_gpt2s(slow_folder: Path, family: str, kind: str) -> None:
    (slow_folder / "config.json").write_text(json.dumps({"model_type": family}))
    (slow_folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind} if kind else {}))
    with pytest.raises(ConfigError, match=rf"model_type '{family}'.*writes tokenizer\.json"):
        Tokenizer.load(slow_folder)


@pytest.mark.parametrize("prefix", [False, True])
def test_gpt2s_files_without_a_tokenizer_json(slow_folder: Path, prefix: bool) -> None:
    """They are read like transformers reads them."""
    config = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": prefix}
    (slow_folder / "tokenizer_config.json").write_text(json.dumps(config))
    text = "Hello 12's\n\n  x<|endoftext|>a"
    assert Tokenizer.load(slow_folder).encode(text).tolist() == AutoTokenizer.from_pretrained(
        slow_folder
    ).encode(text)


def flags(content: str, **changed: bool) -> dict[str, Any]:
    """A token as tokenizer_config.json lists it."""
    plain = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
    return {"content": content, **plain, **changed}


@pytest.mark.parametrize(
    ("config", "special_map"),
    [
        ({"eos_token": "<|end|>", "pad_token": "[PAD]", "unk_token": "<|start|>"}, {}),
        ({}, {"pad_token": "[PAD]", "bos_token": flags("<|start|>", rstrip=True), "eos_token": "<|end|>"}),
        ({"additional_special_tokens": ["<|start|>", "<|end|>"]}, {}),
        ({"extra_special_tokens": {"turn_token": "<|start|>", "end_token": "<|end|>"}}, {}),
        (
            {
                "added_tokens_decoder": {
                    "9": flags("<|start|>", special=False), "10": flags("<|end|>", lstrip=True),
                },
                "eos_token": "<|end|>", "bos_token": "Hi",
            },
            {"pad_token": "[PAD]"},
        ),
    ],
)  # fmt: skip
def test_tokens_that_only_the_configuration_names(tokenizer, tmp_path, config, special_map):
    """They are added like transformers adds them."""
    tokenizer.library.save(str(tmp_path / "tokenizer.json"))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(kind | config))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(special_map))
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path), Tokenizer.load(tmp_path)
    text = "<|start|> user\nHi [PAD] there <|end|>\n"
    ids = ours.encode(text).tolist()
    assert ids == theirs.encode(text) != tokenizer.encode(text).tolist()
    assert text_of(ours, ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("config", ["[]", "{", '{"added_tokens_decoder": {"a": "b"}}', '{"eos_token": {}}'])
def test_a_configuration_that_cannot_be_read(tokenizer: Tokenizer, tmp_path: Path, config: str) -> None:
    tokenizer.library.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(config)
    with pytest.raises(ConfigError, match="cannot be read"):
        Tokenizer.load(tmp_path)


@given(text=st.text(max_size=80))
def test_streamed_text_is_the_text_that_was_encoded(tokenizer: Tokenizer, text: str) -> None:
    if "<|endoftext|>" not in text:
        assert text_of(tokenizer, tokenizer.encode(text).tolist()) == text


@given(ids=st.lists(st.integers(0, LAST_ID), max_size=40))
def test_any_ids_decode_as_the_whole_would(tokenizer: Tokenizer, ids: list[int]) -> None:
    """The pieces joined equal one decoding of all bytes, U+FFFD for what is malformed; none is taken back: no
    piece ends in the middle of a character that a later token completes."""
    raw = b"".join(tokenizer.vocabulary.token_bytes[id] for id in ids)
    detokenizer = tokenizer.detokenizer()
    shown = "".join(map(detokenizer.push, ids))
    assert shown + detokenizer.finish() == codecs.decode(raw, "utf-8", "replace")


@given(
    pieces=st.lists(st.text("abc", max_size=4), max_size=12),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    least=st.integers(0, 6),
)
def test_stop_strings_count_where_they_end(pieces: list[str], stops: list[str], least: int) -> None:
    """The search begins as in vLLM's detokenizer: one that ends after the first `least` pieces counts."""
    cutter = StopStrings(tuple(stops))
    shown = (
        "".join(cutter.push(piece, index >= least) for index, piece in enumerate(pieces)) + cutter.finish()
    )
    text, cuts = "".join(pieces[:least]), list[int]()
    for piece in pieces[least:]:
        text += piece
        if cuts := [
            at
            for stop in stops
            if (at := text.find(stop, max(0, len(text) - len(piece) - len(stop) + 1))) >= 0
        ]:
            text = text[: min(cuts)]
            break
    assert shown == text and cutter.matched == bool(cuts)


class Looked(str):
    """Counts how often it is looked at."""

    looks = 0

    def __getitem__(self, key: Any) -> str:
        self.looks += 1
        return super().__getitem__(key)

    def startswith(self, *args: Any) -> bool:
        self.looks += 1
        return super().startswith(*args)


def test_the_search_for_stop_strings_takes_time_in_proportion_to_the_text() -> None:
    """Text that is held back for one stop string ends with no more than a part of the other's prefix."""
    stop = Looked("a" * 128 + "b" * 128)
    cutter = StopStrings(("a" * 255 + "b", stop))
    for _ in range(500):
        cutter.push("a")
    assert stop.looks < 2500


class Counting(Tokenizer):
    """Keeps how many characters it has encoded."""

    characters = 0

    def encode(self, text: str, special_tokens: bool = True) -> NDArray[np.int32]:
        self.characters += len(text)
        return super().encode(text, special_tokens)


@given(text=st.text(), times=st.integers(1, 200), most=st.integers(1, 100))
def test_a_text_within_a_limit_is_encoded_and_no_other(tokenizer, text, times, most):
    ids = tokenizer.encode(text * times)
    within = tokenizer.encode_within(most, text * times)
    assert len(ids) > most if within is None else (within == ids).all()


@pytest.mark.parametrize("character", ["a", " ", "\u20ac", "\n"])
def test_a_long_text_is_refused_by_its_beginning(tokenizer: Tokenizer, character: str) -> None:
    """Also with the longest tokens of the vocabulary."""
    counting = Counting(tokenizer.library)
    assert counting.encode_within(100, character * 5_000_000) is None
    assert counting.characters < 500_000


PIECES = ["<s>", "\u2581Hello", "\u2581", "world", "\u00e9", *(f"<0x{byte:02X}>" for byte in range(256))]
TO_TEXT = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
#: The bytes of "A\u20ac\u00e9 " with others between: whole characters are as likely as pieces of one.
SOME = [0x41, 0xE2, 0x82, 0xAC, 0xC3, 0xA9, 0x20, 0x80, 0xFF]
PIECE_IDS = st.lists(st.integers(0, 4) | st.sampled_from([5 + byte for byte in SOME]), max_size=12)


def sentencepiece(*steps: decoders.Decoder) -> FastTokenizer:
    """A vocabulary with byte fallback, as Llama 2's, and the decoder that is made of `steps`."""
    fast = FastTokenizer(models.BPE({p: id for id, p in enumerate(PIECES)}, [], byte_fallback=True))
    fast.decoder = decoders.Sequence([*steps])
    fast.add_special_tokens(["<s>"])
    return fast


@given(ids=PIECE_IDS)
def test_names_of_sentencepiece_tokens(ids: list[int]) -> None:
    """Their bytes joined are what the tokenizers library decodes; a special token has only a name."""
    fast = sentencepiece(*TO_TEXT)
    names = Tokenizer(fast).names
    shown = [names[id].text for id in (*range(5), 5 + 0xE2, 5 + 0x41)]
    assert shown == ["<s>", " Hello", " ", "world", "\u00e9", "\\xe2", "A"]
    raw = bytes(byte for id in ids for byte in names[id].bytes or ())
    if "\ufffd" not in raw.decode(errors="replace"):
        assert raw.decode() == fast.decode(ids, skip_special_tokens=True)
    assert names[0].bytes is None and names[len(PIECES)].text == f"token_id:{len(PIECES)}"


@given(ids=PIECE_IDS, strip=st.booleans())
def test_byte_fallback_is_one_decoding_of_all_bytes(ids: list[int], strip: bool) -> None:
    """The library's text is the same except beside malformed bytes, where it drops valid ones too."""
    fast = sentencepiece(*TO_TEXT, *([decoders.Strip(" ", 1, 0)] if strip else []))
    tokenizer = Tokenizer(fast)
    assert tokenizer.vocabulary is not None
    text = b"".join(tokenizer.vocabulary.token_bytes[id] for id in ids).decode(errors="replace")
    assert text_of(tokenizer, ids) == (text.removeprefix(" ") if strip else text)
    if "\ufffd" not in text:
        assert text_of(tokenizer, ids) == fast.decode(ids)


@given(ids=PIECE_IDS)
def test_a_decoder_of_any_kind_shows_all_and_never_fails(ids: list[int]) -> None:
    """Also where a token changes the text before it; text that was held back comes at the end."""
    fast = sentencepiece(decoders.ByteFallback(), decoders.Metaspace())
    tokenizer = Tokenizer(fast)
    assert tokenizer.vocabulary is None
    text, whole = text_of(tokenizer, ids), fast.decode(ids)
    assert text == whole or "\ufffd" in whole
    assert text.endswith("\ufffd") == whole.endswith("\ufffd")


BOTH_KINDS = pytest.mark.parametrize(
    "steps",
    [[*TO_TEXT, decoders.Strip(" ", 1, 0)], [decoders.ByteFallback(), decoders.Metaspace()]],
    ids=["pieces", "window"],
)


@BOTH_KINDS
@example(prompt=[5 + 0xC3, 5 + 0x82], ids=[1])
@given(prompt=PIECE_IDS, ids=PIECE_IDS)
def test_an_answer_continues_its_prompt(steps, prompt, ids):
    """The texts of both joined are the text of all tokens, with the space between two words."""
    fast = sentencepiece(*steps)
    tokenizer = Tokenizer(fast)
    detokenizer = tokenizer.detokenizer(prompt)
    answer = "".join(map(detokenizer.push, ids)) + detokenizer.finish()
    whole = fast.decode([*prompt, *ids])
    if "\ufffd" not in fast.decode(prompt) + fast.decode(ids) + whole:
        assert fast.decode(prompt) + answer == whole


@BOTH_KINDS
@given(
    text=st.text("A\u00e9\u20ac\U0001f600", max_size=4), end=st.sampled_from(["", " Hello"]), data=st.data()
)
def test_a_prompt_that_ends_within_a_character(steps, text, end, data):
    """The answer has the whole character if it completes it, and nothing of it otherwise."""
    tokenizer, raw = Tokenizer(sentencepiece(*steps)), text.encode()
    cut = data.draw(st.integers(0, len(raw)))
    prompt, rest = [5 + byte for byte in raw[:cut]], [5 + byte for byte in raw[cut:]]
    whole = raw[:cut].decode(errors="ignore")
    for ids, shown in ((rest, text[len(whole) :]), ([1] * bool(end), end if cut else end.strip())):
        detokenizer = tokenizer.detokenizer(prompt)
        assert "".join(map(detokenizer.push, ids)) + detokenizer.finish() == shown


@pytest.mark.parametrize("id", [0, len(PIECES) + 3, 5 + 0x80], ids=["special", "unknown", "malformed"])
def test_tokens_without_end_that_show_nothing(id: int) -> None:
    """A token costs no more than the one before it."""
    fast = sentencepiece(decoders.ByteFallback(), decoders.Metaspace())
    detokenizer, ids = Tokenizer(fast).detokenizer(), [1, *[id] * 500, 1]
    assert isinstance(detokenizer, WindowDetokenizer)
    shown, decoded = [], []
    for token in ids:
        shown.append(detokenizer.push(token))
        decoded.append(len(detokenizer._window))
    assert "".join(shown) + detokenizer.finish() == fast.decode(ids)
    assert max(decoded) < 40


def test_other_threads_run_while_a_long_text_is_encoded(tokenizer: Tokenizer) -> None:
    with ThreadPoolExecutor(1) as pool:
        begun = last = time.monotonic()
        encoding = pool.submit(tokenizer.encode, "A text that takes its time. " * 20_000)
        longest = 0.0
        while not encoding.done():
            now = time.monotonic()
            longest, last = max(longest, now - last), now
        assert longest < (time.monotonic() - begun) / 2
