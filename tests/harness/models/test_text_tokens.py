"""Tokens of a text, by the tokenizer of a model that rosemodels made."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders

from harness.engines.prompts import text_prompts
from harness.errors import UsageError
from harness.models.text_tokens import load_tokenizer, token_counter, whole_ends
from rosemodels import tokenizer


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """The folder of a made tokenizer with that many tokens."""

    @cache
    def make(vocab: int) -> Path:
        folder = tmp_path_factory.mktemp("tokenizer")
        tokenizer.write(folder, vocab, 1024)
        return folder

    return make


@pytest.mark.parametrize("vocab", [5_003, 50_257, 60_000])
def test_what_a_made_model_says_has_about_as_many_tokens_as_it_said(folder_of, vocab):
    folder = folder_of(vocab)
    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    count = token_counter(folder)
    assert count is not None
    ids = np.random.default_rng(0).integers(0, vocab, 200).tolist()
    text = made.decode(ids, skip_special_tokens=False)
    assert 200 / 1.5 < count(text) < 200 * 1.5  # tokens that are no whole characters change
    fillers = [f"<{id}>" for id in range(50_257, vocab)][:20]
    assert count("".join(fillers)) == len(fillers)
    assert count("") == 0


def test_settings_of_the_training_do_not_cut_texts(folder_of: Callable[[int], Path], tmp_path: Path) -> None:
    file = str(shutil.copy(folder_of(50_257) / "tokenizer.json", tmp_path))
    plain, cutting = Tokenizer.from_file(file), Tokenizer.from_file(file)
    cutting.enable_truncation(8)
    cutting.enable_padding(length=12)
    cutting.save(file)
    loaded = load_tokenizer(tmp_path)
    assert loaded is not None
    for text in ("short", "a text of more than eight tokens, all of which count"):
        assert loaded.encode(text).ids == plain.encode(text).ids
    assert text_prompts(tmp_path).of([1000] * 30).count(" ") == 30


def test_a_damaged_tokenizer_is_said(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(UsageError, match=r"tokenizer\.json cannot be read: expected value"):
        load_tokenizer(tmp_path)


def test_words_that_only_look_like_fillers_are_text(folder_of: Callable[[int], Path]) -> None:
    plain = Tokenizer.from_file(str(folder_of(60_000) / "tokenizer.json"))
    count = token_counter(folder_of(60_000))
    assert count is not None
    for text in ("<12> and <99999999>", "a < b", "<59999"):
        assert count(text) == len(plain.encode(text, add_special_tokens=False).ids)
    assert count("so <59999>, yes") == count("so ") + 1 + count(", yes")


def test_a_prompt_that_ends_within_a_character_comes_back_and_one_with_a_whole_end_does_not(folder_of):
    """What servers do that decode a prompt together with its answer."""
    made = Tokenizer.from_file(str(folder_of(50_257) / "tokenizer.json"))
    ends = whole_ends(made)
    assert ends is not None and len(ends) == 50_257
    parts = np.flatnonzero(ends != np.arange(len(ends))).tolist()
    assert 0 < len(parts) < 1000 and 50_256 in parts  # the last is the end of the text, which is not shown
    for last in parts:
        assert ends[ends[last]] == ends[last]
        piece = decoders.DecodeStream(ids=[464, int(ends[last])]).step(made, 290)
        assert piece == made.decode([290])
    within = parts[0]
    assert decoders.DecodeStream(ids=[464, within]).step(made, 290) == made.decode([464, within, 290])
