"""How much of each prompt was sent before: what an unbounded prefix cache could reuse."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from harness.schema.results import PREFIX_BLOCK_TOKENS as BLOCK_TOKENS


def reusable_tokens(prompts: Iterable[NDArray[np.int32]]) -> list[int]:
    """For each prompt (int32, one dimension) the number of leading tokens, in whole blocks, that an earlier
    one had.

    A prompt is in the cache from the moment it is sent. The last token of a prompt is always computed,
    because its logits are needed, so its block is never reused."""
    known: set[bytes] = set()
    reusable = []
    for prompt in prompts:
        chains = list(_chain(prompt))
        cached = sum(chain in known for chain in chains)
        reusable.append(min(cached, max(0, len(prompt) - 1) // BLOCK_TOKENS) * BLOCK_TOKENS)
        known.update(chains)
    return reusable


def _chain(prompt: NDArray[np.int32]) -> Iterable[bytes]:
    """For each whole block, a digest of the prompt up to its end."""
    digest = blake2b(digest_size=16)
    for end in range(BLOCK_TOKENS, len(prompt) + 1, BLOCK_TOKENS):
        digest.update(prompt[end - BLOCK_TOKENS : end].tobytes())
        yield digest.digest()
