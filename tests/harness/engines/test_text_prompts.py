"""Text prompts have exactly the number of tokens that was asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from harness.engines import prompts as prompts_module
from harness.engines.prompts import AS_COUNTED, TextPrompts, Words, text_prompts
from harness.errors import EngineError
from harness.models.model_folder import resolve
from harness.models.text_tokens import COMMON_WORDS
from harness.workload import PlannedRequest


@pytest.fixture(scope="module")
def model() -> Path:
    return resolve("random:gpt2-tiny").path


@pytest.fixture(scope="module")
def prompts(model: Path) -> TextPrompts:
    return text_prompts(model)


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model / "tokenizer.json"))


@given(ids=st.lists(st.integers(0, 50_256), min_size=1, max_size=300))
def test_as_many_tokens_as_ids(prompts: TextPrompts, tokenizer: Tokenizer, ids: list[int]):
    assert len(tokenizer.encode(prompts.of(ids)).ids) == len(ids)


def test_shared_prefixes_stay_shared(prompts: TextPrompts):
    prefix = list(range(1000, 1040))
    assert prompts.of([*prefix, 5]).startswith(prompts.of(prefix))
    assert prompts.of([1, 2, 3]) != prompts.of([4, 5, 6])


@given(ids=st.lists(st.integers(0, 50_256), min_size=1, max_size=300))
def test_ids_that_stand_for_themselves_are_written_as_they_are(prompts: TextPrompts, ids: list[int]):
    same = prompts.tokens(ids)
    assert prompts.of(same) == prompts.of(ids)
    assert prompts.tokens(same) == same


def test_a_model_without_tokenizer(tmp_path: Path):
    with pytest.raises(EngineError, match=r"tokenizer\.json"):
        text_prompts(tmp_path)


def test_texts_of_many_prompts_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = np.random.default_rng(0).integers(0, 1000, (40, 12)).astype(np.int32)
    requests = [PlannedRequest(index, None, prompt, 8) for index, prompt in enumerate(prompts)]
    held = Words("chat", None, AS_COUNTED)
    expected = [held.fields(request) for request in requests]
    monkeypatch.setattr(prompts_module, "HELD_TEXTS", 10)
    words = Words("chat", None, AS_COUNTED)
    assert [words.fields(request) for request in requests * 2] == expected * 2
    assert len(words._texts) <= 10 < len(held._texts)


@pytest.mark.parametrize("before", ["", " "])
def test_a_common_word_is_one_token_also_at_the_beginning(tokenizer: Tokenizer, before: str):
    lengths = {word: len(tokenizer.encode(before + word).ids) for word in COMMON_WORDS}
    assert {word for word, length in lengths.items() if length > 1} == set()
