"""Tokens of a text, by the tokenizer of a model that rosemodels made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from harness.models.text_tokens import token_counter
from rosemodels import tokenizer


@pytest.mark.parametrize("vocab", [5_003, 50_257, 60_000])
def test_what_a_made_model_says_has_about_as_many_tokens_as_it_said(tmp_path: Path, vocab: int) -> None:
    tokenizer.write(tmp_path, vocab, 1024)
    made = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    count = token_counter(tmp_path)
    assert count is not None
    ids = np.random.default_rng(0).integers(0, vocab, 200).tolist()
    said = made.decode(ids, skip_special_tokens=False)
    assert 200 / 1.5 < count(said) < 200 * 1.5  # tokens that are no whole characters change
    fillers = [f"<{id}>" for id in range(50_257, vocab)][:20]
    assert count("".join(fillers)) == len(fillers)
    assert count("") == 0


def test_words_that_only_look_like_fillers_are_text(tmp_path: Path) -> None:
    tokenizer.write(tmp_path, 60_000, 1024)
    plain = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    count = token_counter(tmp_path)
    assert count is not None
    for text in ("<12> and <99999999>", "a < b", "<59999"):
        assert count(text) == len(plain.encode(text, add_special_tokens=False).ids)
    assert count("so <59999>, yes") == count("so ") + 1 + count(", yes")
