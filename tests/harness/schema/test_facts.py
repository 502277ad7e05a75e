"""Facts, and how they merge."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.schema.facts import Fact, FactKind, Range, Scope, merge
from harness.schema.load import ClosedLoop

LOADS = [None, ClosedLoop(concurrency=1), ClosedLoop(concurrency=8)]


@st.composite
def any_fact(draw: st.DrawFn) -> Fact:
    scope = Scope(
        engine=draw(st.sampled_from([None, "a", "b"])),
        load=draw(st.sampled_from(LOADS)),
        repeat=draw(st.sampled_from([None, 0, 1])),
    )
    values = {"gpu": draw(st.sampled_from(["0", "1"])), "share": draw(st.floats(0, 1))}
    kind: FactKind = draw(st.sampled_from(["gpu_in_use", "power_capped"]))
    return Fact(kind=kind, scope=scope, values=values)


facts = st.lists(any_fact(), max_size=12)


@given(facts)
def test_every_fact_is_in_one_merged_fact_whose_ranges_hold_its_numbers(found):
    merged = merge(found)
    assert sorted(map(id, found)) == sorted(id(fact) for each in merged for fact in each.facts)
    for each in merged:
        for fact in each.facts:
            assert (fact.kind, fact.scope.load) == (each.kind, each.load)
            assert fact.values["gpu"] == each.values["gpu"]
            share = each.values["share"]
            assert isinstance(share, Range)
            assert share.low <= float(fact.values["share"]) <= share.high


@given(facts)
def test_ranges_end_at_numbers_of_the_facts(found):
    for each in merge(found):
        numbers = [fact.values["share"] for fact in each.facts]
        assert each.values["share"] == (min(numbers), max(numbers))


@given(facts, st.randoms())
def test_the_order_of_facts_does_not_change_the_values(found, random):
    def values(found):
        return sorted((each.kind, str(each.load), sorted(each.values.items())) for each in merge(found))

    mixed = list(found)
    random.shuffle(mixed)
    assert values(mixed) == values(found)


@given(facts)
def test_no_two_merged_facts_could_be_merged(found):
    keys = [(each.kind, each.load, each.values["gpu"]) for each in merge(found)]
    assert len(keys) == len(set(keys))


def test_engines_are_named_once_in_the_order_of_their_facts():
    found = [Fact(kind="few_rounds", scope=Scope(engine=name)) for name in ("b", "a", "b")]
    assert merge(found)[0].engines == ["b", "a"]


def test_facts_with_other_names_of_values_stay_apart():
    found = [
        Fact(kind="brief", values=values) for values in ({"seconds": 1.0}, {"seconds": 2, "wanted_s": 9})
    ]
    assert [each.values for each in merge(found)] == [
        {"seconds": Range(1, 1)},
        {"seconds": Range(2, 2), "wanted_s": Range(9, 9)},
    ]


def test_a_wider_scope_is_narrowed_and_a_narrow_one_kept():
    narrow = Scope(engine="a", load=ClosedLoop(concurrency=1), repeat=0)
    assert Fact(kind="brief").within("a", ClosedLoop(concurrency=1), 0).scope == narrow
    assert Fact(kind="brief", scope=narrow).within("b", ClosedLoop(concurrency=8), 1).scope == narrow


@pytest.mark.parametrize("fact", [{"kind": "brief", "values": {"minutes": 1}}, {"kind": "briefly"}])
def test_a_kind_or_a_value_that_there_is_not_is_refused(fact):
    with pytest.raises(ValidationError):
        Fact.model_validate(fact)


@given(facts)
def test_facts_are_read_back_from_json(found):
    assert [Fact.model_validate_json(fact.model_dump_json()) for fact in found] == found
