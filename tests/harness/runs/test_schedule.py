"""The order of cells: everything once, alike for all engines, drawn from the seed alone."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engines.base import EngineVariant
from harness.engines.selection import make_engine_variants
from harness.engines.variants import Variant
from harness.errors import UsageError
from harness.runs.journal import JournalEntry
from harness.runs.schedule import Cell, Done, Grid, balanced_orders, grid_blocks
from harness.runs.schedule import grid_blocks as plan
from harness.schema.load import Load
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import Skipped
from harness.schema.setting_types import EngineRef
from tests.harness.metrics import test_power

NAMES = ["roseinfer", "roseinfer@a", "vllm", "vllm@a", "transformers"]


def make_variants(count: int) -> list[EngineVariant]:
    refs = [EngineRef.model_validate(name) for name in NAMES[:count]]
    return [EngineVariant(ref, Variant(), str(ref)) for ref in refs]


@st.composite
def asked(draw: st.DrawFn) -> tuple[OnlineSettings, list[EngineVariant]]:
    scales = st.lists(st.sampled_from([0.1, 0.4, 0.8, 1.0, 1.6, 3.0]), min_size=1, unique=True)
    in_flight = st.lists(st.integers(1, 300), min_size=1, max_size=5, unique=True)
    load = draw(st.builds(dict, scales=scales) | st.builds(dict, concurrency=in_flight))
    settings = OnlineSettings(
        **load,
        repeats=draw(st.integers(1, 5)),
        interleave=draw(st.booleans()),
        seed=draw(st.integers(0, 2**31 - 1)),
    )
    return settings, make_variants(draw(st.integers(1, len(NAMES))))


def cells_of(settings: OnlineSettings, engine_variants: list[EngineVariant]) -> list[Cell]:
    return [cell for block in plan(settings, engine_variants) for cell in block.cells]


@given(asked())
def test_every_engine_meets_every_load_in_every_repeat(
    case: tuple[OnlineSettings, list[EngineVariant]],
) -> None:
    settings, engine_variants = case
    blocks, cells, labels = plan(*case), cells_of(*case), [variant.label for variant in engine_variants]
    places = Counter((cell.engine_variant.label, cell.load, cell.repeat) for cell in cells)
    assert places == Counter(product(labels, settings.loads, range(settings.repeats)))
    assert [cell.index for cell in cells] == list(range(len(cells)))
    for block in blocks:
        assert {cell.server for cell in block.cells} == {block.cells[0].server}
        assert all(a.load.weight < b.load.weight for a, b in pairwise(block.cells))
    order = [(block.cells[0].repeat, block.engine_variant.label) for block in blocks]
    if settings.interleave:
        assert [repeat for repeat, _ in order] == sorted(repeat for repeat, _ in order)
    else:
        assert order == [(repeat, label) for label in labels for repeat in range(settings.repeats)]


@given(asked())
def test_engines_share_prompts_and_loads_and_seeds_do_not(
    case: tuple[OnlineSettings, list[EngineVariant]],
) -> None:
    settings, engine_variants = case
    seeds: dict[tuple[Load, int], set[int]] = {}
    for cell in cells_of(*case):
        seeds.setdefault((cell.load, cell.repeat), set()).add(cell.load_seed)
    assert all(len(of_load) == 1 for of_load in seeds.values())
    every = set.union(*seeds.values())
    assert len(every) == len(settings.loads) * settings.repeats
    assert plan(settings, engine_variants) == plan(settings.model_copy(), engine_variants)
    other = settings.model_copy(update={"seed": settings.seed + 1})
    assert every.isdisjoint(cell.load_seed for cell in cells_of(other, engine_variants))


@given(st.integers(1, 9), st.integers(0, 2**40))
def test_over_a_whole_design_places_and_neighbours_are_balanced(engines: int, seed: int) -> None:
    rows = engines * (1 + engines % 2)
    for design in (slice(0, rows), slice(rows, 2 * rows)):  # each design by itself
        orders = balanced_orders(engines, 2 * rows, seed)[design]
        assert all(sorted(order) == list(range(engines)) for order in orders)
        places = Counter((place, member) for order in orders for place, member in enumerate(order))
        assert len(places) == engines**2 and set(places.values()) == {rows // engines}
        after = Counter(pair for order in orders for pair in pairwise(order))
        assert len(after) == engines * (engines - 1) and len(set(after.values())) <= 1


@given(st.integers(1, 9), st.integers(0, 9), st.integers(0, 2**40))
def test_every_two_repeats_are_a_row_and_its_reverse(engines: int, pairs: int, seed: int) -> None:
    """A steady drift of the machine then has the same effect on every engine, with few repeats too."""
    orders = balanced_orders(engines, 2 * pairs + 1, seed)
    assert len(orders) == 2 * pairs + 1
    assert all(orders[i + 1] == orders[i][::-1] for i in range(0, 2 * pairs, 2))


def test_the_order_of_one_repeat_is_drawn_from_the_seed() -> None:
    who = make_variants(5)
    orders = {
        tuple(block.engine_variant.label for block in plan(OnlineSettings(seed=seed), who))
        for seed in range(40)
    }
    assert len(orders) > 20
    assert {order[0] for order in orders} == {member.label for member in who}


def test_with_aa_every_engine_is_two_in_balanced_orders() -> None:
    settings = OnlineSettings(engines=["roseinfer", "vllm"], aa=True, repeats=4, scales=[1.0, 2.0])
    engine_variants = make_engine_variants(settings)
    labels = ["roseinfer (A)", "roseinfer (B)", "vLLM (A)", "vLLM (B)"]
    assert [who.label for who in engine_variants] == labels
    assert engine_variants[0].ref == engine_variants[1].ref
    blocks = plan(settings, engine_variants)
    orders = [[block.engine_variant.label for block in blocks[i : i + 4]] for i in range(0, 16, 4)]
    for engine in ("roseinfer", "vLLM"):
        first = Counter(order.index(f"{engine} (A)") < order.index(f"{engine} (B)") for order in orders)
        assert first == {True: 2, False: 2}
    for place in range(4):
        assert {order[place] for order in orders} == {who.label for who in engine_variants}


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


def entry_of(each: Cell, factor: float) -> JournalEntry:
    label, load = each.engine_variant.label, each.load
    summary = test_power.cell(label, each.repeat, factor).model_copy(update={"load": load})
    place = {"engine": "x", "label": label, "load": load, "repeat": each.repeat}
    return JournalEntry(cell=each.index, finished="", summary=summary, **place)


def repeats_of(spread: float, settings: OnlineSettings, entries: list[JournalEntry]) -> list[int]:
    """The numbers of repeats after which a run asked what is next, from these cells on."""
    engines = make_variants(2)
    grid, rng, asked_after = Grid(grid_blocks(settings, engines), settings), np.random.default_rng(3), []
    while cells := grid.next(Done(entries)):
        assert [each.index for each in cells] == list(range(len(entries), len(entries) + len(cells)))
        entries += [entry_of(each, float(np.exp(spread * rng.standard_normal()))) for each in cells]
        asked_after.append(1 + entries[-1].repeat)
        assert bool(grid.power(Done(entries))) == (asked_after[-1] == 2)
    return asked_after


@pytest.mark.parametrize(
    ("spread", "given", "asked_after"),
    [
        (0.001, {"until": "10%"}, [2, 4]),
        (0.04, {"until": "10%"}, [2, 4, 6, 10, 16]),
        (0.5, {"until": "10%", "repeats": 7}, [2, 4, 7]),
        (0.5, {"until": "10%", "until_seconds": 1e-9}, [1]),
        (0.001, {"repeats": 5}, [2, 5]),
        (0.001, {"repeats": 5, "interleave": False}, [5]),
        (0.001, {"repeats": 1}, [1]),
    ],
)
def test_repeats_until_a_difference_would_be_found(
    spread: float, given: dict[str, object], asked_after: list[int]
) -> None:
    settings = OnlineSettings.model_validate({"concurrency": [4], **given})
    entries: list[JournalEntry] = []
    assert repeats_of(spread, settings, entries) == asked_after
    assert repeats_of(spread, settings, entries[:]) == [], "a run that is resumed has ended, too"
    if asked_after[:3] == [2, 4, 6]:
        assert repeats_of(spread, settings, entries[: 2 * 5])[0] == 6, "it goes on to the next look"


def test_a_cell_that_failed_is_not_waited_for() -> None:
    settings = OnlineSettings.model_validate({"concurrency": [4], "until": "10%", "repeats": 4})
    engines = make_variants(2)
    grid = Grid(grid_blocks(settings, engines), settings)
    cells = grid.next(Done([])) or []
    fault = cells[0].skipped(UsageError("no", ""))
    entries = [entry_of(each, 1.0) for each in cells[1:]]
    following = grid.next(Done(entries, [fault])) or []
    assert isinstance(fault, Skipped) and {each.repeat for each in following} == {2, 3}


@pytest.mark.parametrize(
    ("most", "looks"),
    [(2, [2]), (4, [4]), (7, [4, 7]), (20, [4, 6, 10, 16, 20]), (50, [4, 6, 10, 16, 24, 36, 50])],
)
def test_looks(most: int, looks: list[int]) -> None:
    assert OnlineSettings(until=0.1, repeats=most).looks == looks
    assert OnlineSettings(repeats=most).looks == [most]
    assert OnlineSettings(until=0.1).repeats == 50
