"""The order of cells: everything once, alike for all engines, drawn from the seed alone."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engines.base import Contender
from harness.engines.registry import contender
from harness.engines.variants import Variant
from harness.errors import UsageError
from harness.runs.resolved import make_contenders
from harness.runs.schedule import Cell, plan
from harness.schema.load import Load
from harness.schema.settings import EngineRef, OnlineSettings

NAMES = ["roseinfer", "roseinfer@a", "vllm", "vllm@a", "transformers"]


def contenders(count: int) -> list[Contender]:
    refs = [EngineRef.model_validate(name) for name in NAMES[:count]]
    return [Contender(ref, Variant(), str(ref)) for ref in refs]


@st.composite
def asked(draw: st.DrawFn) -> tuple[OnlineSettings, list[Contender]]:
    scales = st.lists(st.sampled_from([0.1, 0.4, 0.8, 1.0, 1.6, 3.0]), min_size=1, unique=True)
    in_flight = st.lists(st.integers(1, 300), min_size=1, max_size=5, unique=True)
    load = draw(st.builds(dict, scales=scales) | st.builds(dict, concurrency=in_flight))
    settings = OnlineSettings(
        **load,
        repeats=draw(st.integers(1, 5)),
        interleave=draw(st.booleans()),
        seed=draw(st.integers(0, 2**40)),
    )
    return settings, contenders(draw(st.integers(1, len(NAMES))))


def cells_of(settings: OnlineSettings, who: list[Contender]) -> list[Cell]:
    return [cell for block in plan(settings, who) for cell in block.cells]


@given(asked())
def test_every_engine_load_and_repeat_once(case: tuple[OnlineSettings, list[Contender]]) -> None:
    settings, who = case
    cells = cells_of(settings, who)
    seen = Counter((cell.contender.label, cell.load, cell.repeat) for cell in cells)
    assert set(seen.values()) == {1}
    assert set(seen) == {
        (one.label, load, repeat)
        for one in who
        for load in settings.loads
        for repeat in range(settings.repeats)
    }
    assert [cell.index for cell in cells] == list(range(len(cells)))


@given(asked())
def test_a_block_is_one_engine_and_repeat_from_light_to_heavy(
    case: tuple[OnlineSettings, list[Contender]],
) -> None:
    for block in plan(*case):
        assert all(cell.contender is block.contender for cell in block.cells)
        assert len({cell.repeat for cell in block.cells}) == 1
        assert all(a.load.weight < b.load.weight for a, b in pairwise(block.cells))


@given(asked())
def test_engines_share_loads_and_loads_share_nothing(case: tuple[OnlineSettings, list[Contender]]) -> None:
    settings, who = case
    loads: dict[tuple[Load, int], set[int]] = {}
    for cell in cells_of(settings, who):
        loads.setdefault((cell.load, cell.repeat), set()).add(cell.load_seed)
    assert all(len(seeds) == 1 for seeds in loads.values())
    assert len(set.union(*loads.values())) == len(settings.loads) * settings.repeats


@given(asked())
def test_repeats_are_complete_blocks_or_follow_each_other(
    case: tuple[OnlineSettings, list[Contender]],
) -> None:
    settings, who = case
    order = [(block.cells[0].repeat, block.contender.label) for block in plan(settings, who)]
    if settings.interleave:
        repeats = [repeat for repeat, _ in order]
        assert repeats == sorted(repeats)
    else:
        assert order == [(repeat, one.label) for one in who for repeat in range(settings.repeats)]


@given(asked())
def test_the_seed_decides(case: tuple[OnlineSettings, list[Contender]]) -> None:
    settings, who = case
    assert plan(settings, who) == plan(settings.model_copy(), who)
    other = settings.model_copy(update={"seed": settings.seed + 1})
    assert {cell.load_seed for cell in cells_of(settings, who)}.isdisjoint(
        cell.load_seed for cell in cells_of(other, who)
    )


def test_engines_take_every_place_in_the_order() -> None:
    """Drawn anew for each repeat: over many, no engine keeps a place, and none has it more than its share."""
    settings, who = OnlineSettings(repeats=600), contenders(3)
    blocks = plan(settings, who)
    places = Counter((i % 3, block.contender.label) for i, block in enumerate(blocks))
    assert set(places.values()) <= set(range(150, 251)) and len(places) == 9


def test_one_repeat_keeps_the_order_asked_for() -> None:
    who = contenders(5)
    assert [block.contender for block in plan(OnlineSettings(), who)] == who


def test_two_that_would_be_drawn_alike_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    (tmp_path / "roseinfer.yaml").write_text("variants: {a: {label: x}, b: {label: x}, plain: {}}")
    monkeypatch.setattr("harness.engines.base.CONFIGS", tmp_path)
    assert contender(EngineRef.model_validate("roseinfer@a")).label == "roseinfer (x)"
    for pair in ("roseinfer@a,roseinfer@b", "roseinfer,roseinfer@plain"):
        with pytest.raises(UsageError, match="are both drawn as") as raised:
            make_contenders(OnlineSettings(engines=pair))
        assert all(name in raised.value.message for name in pair.split(","))
    assert len(make_contenders(OnlineSettings(engines="roseinfer,roseinfer@b"))) == 2


def test_with_aa_every_engine_is_two_in_the_same_blocks() -> None:
    settings = OnlineSettings(engines=["roseinfer", "vllm"], aa=True, repeats=4, scales=[1.0, 2.0])
    contenders = make_contenders(settings)
    assert [who.label for who in contenders] == ["roseinfer (A)", "roseinfer (B)", "vLLM (A)", "vLLM (B)"]
    assert contenders[0].ref == contenders[1].ref
    blocks = plan(settings, contenders)
    orders = [[block.contender.label for block in blocks[i : i + 4]] for i in range(0, 16, 4)]
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    assert len({tuple(order) for order in orders}) > 1
