"""Prompts as token ids: distinct by default, equal exactly where prefixes of a trace are; their reuse.

Ids come from a counter-based generator (Philox; Salmon et al., SC 2011). Its key is the seed and a stream,
its counter starts at the request's index or the block's hash. Counters never overlap, so two prompts, also of
other seeds or streams, share a block of 16 tokens only with a probability below V^-16."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from harness.schema.results import PREFIX_BLOCK_TOKENS as BLOCK_TOKENS


class PromptSource:
    """Prompts of one stream of one seed; equal arguments give equal tokens.

    Ids are below `vocab_size - 1`: the last id is GPT-2's only special token, the end of text.
    """

    def __init__(self, vocab_size: int, seed: int, stream: str) -> None:
        if vocab_size < 2:
            raise ValueError("a vocabulary has at least two tokens")
        self._ids = np.uint64(vocab_size - 1)
        self._prompts = _key(seed, stream)
        self._blocks = _key(seed, f"{stream} blocks")

    def distinct(self, index: int, length: int) -> NDArray[np.int32]:
        """Draw the prompt of the request at `index`: (length,) tokens shared with no other prompt."""
        return self._draw(self._prompts, index, length)

    def shared(self, index: int, length: int, blocks: Sequence[int], block_size: int) -> NDArray[np.int32]:
        """Draw a prompt, (length,), that begins with `blocks`, given by their hashes, of `block_size` tokens.

        Equal hashes give equal tokens. The last block is cut at the end of the prompt; tokens after the
        blocks are shared with no other prompt.
        """
        needed = -(-length // block_size)
        parts = [self._draw(self._blocks, block, block_size) for block in blocks[:needed]]
        parts.append(self.distinct(index, max(0, length - len(parts) * block_size)))
        return np.concatenate(parts)[:length]

    def _draw(self, key: NDArray[np.uint64], place: int, length: int) -> NDArray[np.int32]:
        low, high = place & 0xFFFF_FFFF_FFFF_FFFF, (place >> 64) & 0xFFFF_FFFF_FFFF_FFFF
        generator = np.random.Philox(key=key, counter=np.array([0, 0, low, high], dtype=np.uint64))
        raw = np.asarray(generator.random_raw(length), dtype=np.uint64)
        return (raw % self._ids).astype(np.int32)


def _key(seed: int, stream: str) -> NDArray[np.uint64]:
    """Return a 128-bit key from a seed and a name; (2,)."""
    digest = hashlib.blake2b(f"{seed} {stream}".encode(), digest_size=16).digest()
    return np.frombuffer(digest, dtype=np.uint64)


def reusable_tokens(prompts: Iterable[NDArray[np.int32]]) -> list[int]:
    """Count the leading tokens of each prompt, (T,), that an earlier one had, in whole blocks.

    An unbounded prefix cache could reuse these. A prompt is in the cache from the moment it is sent. The last
    token of a prompt is always computed, because its logits are needed, so its block is never reused.
    """
    cached: set[bytes] = set()
    reusable = []
    for prompt in prompts:
        chains = list(_chain(prompt))
        blocks = sum(chain in cached for chain in chains)
        reusable.append(min(blocks, max(0, len(prompt) - 1) // BLOCK_TOKENS) * BLOCK_TOKENS)
        cached.update(chains)
    return reusable


def _chain(prompt: NDArray[np.int32]) -> Iterable[bytes]:
    """Yield, for each whole block, a digest of the prompt up to its end."""
    digest = hashlib.blake2b(digest_size=16)
    for end in range(BLOCK_TOKENS, len(prompt) + 1, BLOCK_TOKENS):
        digest.update(prompt[end - BLOCK_TOKENS : end].tobytes())
        yield digest.digest()
