"""The prompts of the answer check, with lengths below and above the block sizes of engines."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from harness.engines.text_prompts import text_prompts
from harness.errors import EngineError

LENGTHS = (4, 16, 33, 64, 100, 129)
OUTPUT_TOKENS = 16
#: Different from the seeds of loads.
_SEED = 0xA45


def check_prompts(model: Path, vocab_size: int, context: int) -> list[list[int]]:
    """Token ids of each prompt that fits the context.

    If the model has a tokenizer, the ids survive decoding and encoding, so that engines that take only text
    get the same prompts."""
    rng = np.random.default_rng(_SEED)
    lengths = [length for length in LENGTHS if length + OUTPUT_TOKENS <= context]
    drawn: list[list[int]] = [rng.integers(vocab_size, size=length).tolist() for length in lengths]
    try:
        text = text_prompts(model)
        return [text.tokens(prompt) for prompt in drawn]
    except EngineError:
        return drawn
