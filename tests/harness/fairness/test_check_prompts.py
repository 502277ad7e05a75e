"""The prompts of the answer check."""

from __future__ import annotations

from pathlib import Path

from harness.engines.prompts import text_prompts
from harness.fairness.answer_check import LENGTHS, OUTPUT_TOKENS, check_prompts
from harness.models import resolve


def test_engines_that_take_text_are_asked_the_same() -> None:
    model = resolve("random:gpt2-tiny").path
    prompts = check_prompts(model, 50_257, 1024)
    assert [len(prompt) for prompt in prompts] == list(LENGTHS)
    assert prompts == check_prompts(model, 50_257, 1024)
    text = text_prompts(model)
    assert [text.tokens(prompt) for prompt in prompts] == prompts


def test_a_short_context_gets_short_prompts_and_a_model_without_tokenizer_any(tmp_path: Path) -> None:
    prompts = check_prompts(tmp_path, 10, 64)
    assert [len(prompt) for prompt in prompts] == [4, 16, 33]
    assert all(len(prompt) + OUTPUT_TOKENS <= 64 for prompt in prompts)
    assert {token for prompt in prompts for token in prompt} <= set(range(10))
    assert check_prompts(tmp_path, 10, 16) == []
