"""Repeats that are measured side by side: every set of machines has all engines alike."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from harness.engines.selection import make_engine_variants
from harness.runs.schedule import grid_blocks
from harness.schema.online_settings import OnlineSettings


@given(st.integers(1, 5), st.data())
def test_each_side_measures_whole_repeats_in_their_order(count, data) -> None:
    repeats = data.draw(st.integers(count, 9))
    settings = OnlineSettings(
        engines="roseinfer,vllm,sglang",
        concurrency=[1, 2],
        repeats=repeats,
        seed=data.draw(st.integers(0, 99)),
    )
    blocks = grid_blocks(settings, make_engine_variants(settings), count)
    divided = [[block for block in blocks if block.cells[0].side == side] for side in range(count)]
    cells = [cell.index for own in divided for block in own for cell in block.cells]
    assert sorted(cells) == [*range(6 * repeats)]
    for own in divided:
        engines = Counter(block.engine_variant.label for block in own)
        assert len(engines) == 3 and len({*engines.values()}) == 1
    lengths = [len(own) for own in divided]
    assert max(lengths) - min(lengths) <= 3
