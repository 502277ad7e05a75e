"""Random prompts of groups that begin alike, so that a prefix cache can have a wanted share of them.

A group has a chain of blocks. Its parts are those of the nodes above it in a tree: the first part is shared
by all groups, the last is its own. The first request of a group has the whole chain, as far as it is long;
each other request has as many of the chain's blocks as keep the share of all prompt tokens that came before
near the wanted one, and then tokens of its own.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from harness.errors import UsageError
from harness.schema.results import PREFIX_BLOCK_TOKENS as BLOCK
from harness.schema.setting_types import SharedPrefixes
from harness.traces import sampling
from harness.workload.content import Ints, SyntheticContent
from harness.workload.planned_requests import UNTIMED, PlannedRequest, PromptSource

#: The stream of the seed that draws groups; lower ones are for times, lengths and the order of prompts.
GROUPS = 4


class SharedPrefixContent(SyntheticContent):
    """Prompts of `SyntheticContent` whose beginnings are shared within groups."""

    def __init__(self, shared: SharedPrefixes, *synthetic: object) -> None:
        super().__init__(*synthetic)  # type: ignore[arg-type]
        self._shared = shared

    def take(self, n: int, seed: int, shape_seed: int, first: int = 0) -> list[PlannedRequest]:
        inputs, outputs = self.lengths(n, shape_seed, first)
        groups = draw_groups(self._shared, first + n, shape_seed)[first:]
        blocks = shared_blocks(self._shared, inputs, groups)
        source, longest = PromptSource(self._vocab_size, seed, UNTIMED), int(inputs.max()) // BLOCK
        return [
            PlannedRequest(
                index,
                None,
                source.shared(first + index, length, self._chain(group, longest, first)[:count], BLOCK),
                output,
            )
            for index, (length, output, group, count) in enumerate(
                zip(inputs.tolist(), outputs.tolist(), groups.tolist(), blocks.tolist(), strict=True)
            )
        ]

    @property
    def text(self) -> str:
        return f"{super().text}, {self._shared.text}"

    def _chain(self, group: int, longest: int, first: int) -> list[int]:
        """Return the hashes of a group's blocks; those of a load that is sent again are others."""
        tree = nodes(self._shared, group)
        level = [_part(self._shared.depth, longest, place) for place in range(longest)]
        return [((first << 4 | part) << 24 | tree[part]) << 32 | place for place, part in enumerate(level)]


def draw_groups(shared: SharedPrefixes, n: int, seed: int) -> Ints:
    """Draw the group of each request, (n,): group g, from 0, with a weight of (g + 1)^-zipf."""
    weights = np.arange(1, shared.groups + 1, dtype=np.float64) ** -shared.zipf
    places = np.cumsum(weights) / weights.sum()
    return np.minimum(np.searchsorted(places, sampling.uniforms(n, seed, GROUPS)), shared.groups - 1)


def nodes(shared: SharedPrefixes, group: int) -> list[int]:
    """Return the node of each level above and at a group: evenly many below each node."""
    if shared.depth == 1:
        return [group]
    branches = ceil(shared.groups ** (1 / (shared.depth - 1)))
    return [group // branches ** (shared.depth - 1 - level) for level in range(shared.depth)]


def _part(depth: int, longest: int, place: int) -> int:
    """Return the level to which the block at `place` of a chain of `longest` belongs."""
    return place * depth // longest


def shared_blocks(shared: SharedPrefixes, inputs: Ints, groups: Ints) -> Ints:
    """Return how many blocks of its group's chain each prompt begins with, (n,).

    Raises:
        UsageError: The wanted share cannot be reached.
    """
    longest, depth = int(inputs.max()) // BLOCK, shared.depth
    ends = [-(-longest * (level + 1) // depth) for level in range(depth)]
    cached_of_node: dict[tuple[int, int], int] = {}
    whole, usable = inputs // BLOCK, np.maximum(inputs - 1, 0) // BLOCK
    in_cache, is_first = np.zeros_like(inputs), np.zeros(len(inputs), dtype=bool)
    begun: set[int] = set()
    for index, group in enumerate(groups.tolist()):
        tree = list(enumerate(nodes(shared, group)))
        cached_blocks = max(min(cached_of_node.get(node, 0), ends[node[0]]) for node in tree)
        in_cache[index] = min(cached_blocks, usable[index])
        if group not in begun:
            begun.add(group)
            is_first[index] = True
            for node in tree:
                cached_of_node[node] = max(cached_of_node.get(node, 0), int(whole[index]))
    target = shared.share * inputs.sum() / BLOCK
    of_first, of_others = int(in_cache[is_first].sum()), int(in_cache[~is_first].sum())
    if not of_first - 1 <= target <= of_first + of_others + 1:
        low, high = (100 * BLOCK * blocks / inputs.sum() for blocks in (of_first, of_first + of_others))
        raise UsageError(
            f"--shared-prefixes share={100 * shared.share:g}%: {len(inputs)} requests of {len(begun)} groups "
            f"can share {low:.1f} to {high:.1f} % of their prompt tokens",
            "take fewer groups, more requests, longer prompts or another share",
        )
    factor = max(0.0, target - of_first) / of_others if of_others else 0.0
    blocks, owed = whole.copy(), 0.0
    for index in np.flatnonzero(~is_first).tolist():
        owed += factor * int(in_cache[index])
        blocks[index] = min(int(in_cache[index]), round(owed))
        owed -= int(blocks[index])
    return blocks
