"""How much of each prompt a server had been sent before: what a prefix cache without bounds could reuse."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from harness.schema.results import PREFIX_BLOCK_TOKENS as BLOCK_TOKENS


def reusable_tokens(prompts: Iterable[NDArray[np.int32]]) -> list[int]:
    """For each prompt (int32, one dimension) the leading tokens, in whole blocks, that one before it had.

    A cache holds each prompt from the moment it is sent. The last token of a prompt is always computed, since
    its logits are needed, so the block that holds it is never reused.
    """
    known: set[bytes] = set()
    found = []
    for prompt in prompts:
        chains = list(_chain(prompt))
        held = sum(chain in known for chain in chains)
        found.append(min(held, (len(prompt) - 1) // BLOCK_TOKENS) * BLOCK_TOKENS)
        known.update(chains)
    return found


def _chain(prompt: NDArray[np.int32]) -> Iterable[bytes]:
    """A digest of the prompt up to the end of each of its whole blocks."""
    digest = blake2b(digest_size=16)
    for end in range(BLOCK_TOKENS, len(prompt) + 1, BLOCK_TOKENS):
        digest.update(prompt[end - BLOCK_TOKENS : end].tobytes())
        yield digest.digest()
