"""Settings side by side."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.fairness.ledger import OWN, SETTINGS, ledger
from harness.schema.fairness import EngineFact
from harness.schema.run_info import LaunchRecord

keys = st.sampled_from(list(SETTINGS))
facts = st.dictionaries(
    keys, st.builds(EngineFact, value=st.sampled_from([None, 1, 2, "a", [1]]), source=st.just("log"))
)


def launched(**values: object) -> LaunchRecord:
    facts = {key: EngineFact(value=value, source="log") for key, value in values.items()}
    return LaunchRecord(engine="e", label=repr(values), facts=facts)


@pytest.mark.parametrize(
    "key", ["threads", "cpus", "dtype", "kv_dtype", "context", "prefix_cache", "answers"]
)
def test_what_favours_an_engine_is_flagged(key: str) -> None:
    [row] = ledger([launched(**{key: 1}), launched(**{key: 2})]).unequal
    assert row.key == key


@pytest.mark.parametrize("key", ["processes", "http_processes", "idle_cores"])
def test_what_an_engine_uses_beside_its_threads_has_a_row(key: str) -> None:
    [row] = ledger([launched(**{key: 1}), launched(**{key: 4})]).rows
    assert (row.key, row.agreement) == (key, "own")


@given(st.lists(facts, max_size=4))
def test_every_setting_that_is_reported_has_a_row_and_unequal_ones_are_flagged(reported):
    launches = [LaunchRecord(engine="e", label=str(i), facts=facts) for i, facts in enumerate(reported)]
    found = ledger(launches)
    assert {row.key for row in found.rows} == {key for facts in reported for key in facts}
    assert found.labels == [launch.label for launch in launches]
    for row in found.rows:
        assert list(row.facts) == found.labels
        values = [fact.value for fact in row.facts.values() if fact is not None]
        if row.key in OWN:
            assert row.agreement == "own"
        elif len(values) == 1:
            assert row.agreement == "unknown"
        else:
            assert (row.agreement == "differs") == any(value != values[0] for value in values)
    assert [row.key for row in found.unequal] == [r.key for r in found.rows if r.agreement == "differs"]
