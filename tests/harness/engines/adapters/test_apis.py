"""The tokens that `generate` of transformers made, without what fills up a batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from harness.engines.adapters.apis import Transformers

PROMPTS = [[1, 2, 3], [7, 8, 9]]


def made(folder: Path, **changes: object) -> Transformers:
    """A GPT-2 of the same random weights, with these settings of its generation."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=64, n_positions=64, n_embd=32, n_layer=2, n_head=2, initializer_range=0.5)
    model = GPT2LMHeadModel(config)
    model.generation_config.update(**changes)
    model.save_pretrained(folder)
    return Transformers(str(folder), "cpu", "float32")


@pytest.fixture
def whole(tmp_path: Path) -> list[list[int]]:
    return made(tmp_path / "whole").generate(PROMPTS, [16, 16], ignore_eos=True)


@pytest.mark.parametrize("several", [True, False])
def test_an_answer_that_ends_early_is_as_long_as_it_is(tmp_path, whole, several):
    end = next(token for token in whole[0][1:] if token not in whole[1])
    unused = next(token for token in range(64) if token not in whole[0] + whole[1])
    engine = made(tmp_path / "ends", eos_token_id=[unused, end] if several else end)
    early, late = engine.generate(PROMPTS, [16, 16], ignore_eos=False)
    assert early == whole[0][: whole[0].index(end) + 1]
    assert late == whole[1]
    assert [len(answer) for answer in engine.generate(PROMPTS, [16, 16], ignore_eos=True)] == [16, 16]


def test_no_penalty_of_the_model_changes_a_greedy_answer(tmp_path: Path, whole: list[list[int]]) -> None:
    engine = made(tmp_path / "penalty", repetition_penalty=5.0, eos_token_id=None)
    assert engine.generate(PROMPTS, [16, 16], ignore_eos=True) == whole
