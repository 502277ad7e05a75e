"""What a server's own page says of a cell, joined with its requests by time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from harness.metrics.notices import cell_notices
from harness.metrics.samples import Group, split
from harness.metrics.summary import page_facts, prefix_hits, waits
from harness.records.columns import SERVER
from harness.report.tables.saved_work import prefix_table
from harness.schema.facts import Fact
from harness.schema.load import ClosedLoop, load_text
from harness.schema.results import PrefixCount, PrefixHits

from .conftest import Tables, build

SECONDS = 10
LOOP = {"load": load_text(ClosedLoop(concurrency=2)), "engine": "openai", "label": "openai"}


def tables(slow: range, **given: Any) -> Tables:
    """Two requests in flight, each second two new ones of 20 tokens, twice as slow in some seconds."""
    rows = []
    for second in range(SECONDS):
        step = 0.04 if second in slow else 0.02
        for _ in range(2):
            chunks = [(second + step * (i + 1), 1) for i in range(20)]
            rows.append({"t_sched": None, "t_sent": float(second), "chunks": chunks} | LOOP | given)
    return build(rows)


def readings(**columns: Any) -> pd.DataFrame:
    """A reading each half second, from half a second before the first request."""
    t = np.arange(-0.5, SECONDS, 0.5)
    given = {"cell": 0, "t": t, "took_ms": 2.0, "running": 2.0, "waiting": 0.0}
    return pd.DataFrame(given | {name: value(t) for name, value in columns.items()}, columns=SERVER.names)


def stated(slow: range, **columns: Any) -> dict[str, Fact]:
    [group] = split(*tables(slow))
    return {fact.kind: fact for fact in page_facts(group, readings(**columns))}


def within(t: Any, begin: float, end: float, value: float = 1.0) -> Any:
    return np.where((t >= begin) & (t < end), value, 0.0)


def test_a_page_that_shows_nothing_is_no_notice() -> None:
    assert stated(range(0)) == {}
    assert stated(range(0), running=lambda t: t * np.nan, kv_usage=lambda t: 0.9 + 0 * t) == {}


def test_preemptions_have_their_size_in_the_metrics() -> None:
    facts = stated(range(4, 6), preemptions=lambda t: 3 * np.clip((t - 4) // 0.5, 0, 4))
    assert facts.keys() == {"preempted"}
    values = facts["preempted"].values
    assert values["preemptions"] == 12
    assert values["share"] == pytest.approx(2 / 9.4, rel=0.01)
    assert values["tpot_times"] == pytest.approx(2, rel=0.02)
    assert "ttft_times" not in values, "four waits are too few"


def test_a_full_cache_and_the_requests_of_others() -> None:
    facts = stated(
        range(5),
        kv_usage=lambda t: within(t, 0, 5, 0.97),
        running=lambda t: within(t, 0, 99, 2.0),
        waiting=lambda t: within(t, -1, 5, 30.0),
    )
    assert facts.keys() == {"full_cache", "others_requests"}
    for fact in facts.values():
        assert fact.values["share"] == pytest.approx(5 / 9.4, rel=0.01)
        assert fact.values["tpot_times"] == pytest.approx(2, rel=0.02)
        assert fact.values["ttft_times"] == pytest.approx(2, rel=0.02)
        assert fact.scope.engine == "openai" and fact.scope.repeat == 0
    assert {facts["others_requests"].values[name] for name in ("most", "before")} == {30}


def test_the_warm_up_may_still_be_on_the_page() -> None:
    """Gauges of some servers are set after some steps."""
    assert stated(range(0), running=lambda t: np.where(t < 3, 40.0, 2.0)) == {}


@pytest.mark.parametrize(("running", "most"), [(2, None), (3, 1)])
def test_a_page_that_is_stale_does_not_accuse_others(running: int, most: int | None) -> None:
    """Requests of the cell that have just ended may still be on it."""
    facts = stated(range(0), running=lambda t: 0 * t + running)
    assert (facts["others_requests"].values["most"] if facts else None) == most


def test_gaps_begin_where_the_one_before_ends() -> None:
    [group] = split(*tables(range(4, 6)))
    tokens = waits(group)["tpot_times"]
    first = np.arange(SECONDS).repeat(2) + np.where(np.isin(np.arange(SECONDS), [4, 5]), 0.04, 0.02).repeat(2)
    assert tokens.begin[::19] == pytest.approx(first)
    assert tokens.begin[1:19] == pytest.approx(tokens.end[:18])


def of_cache(
    queries: float, hits: float, reusable: list[int], caching: bool = True, **by_cache: float
) -> tuple[PrefixHits, Group]:
    rows = [
        {"t_sched": None, "t_sent": float(i), "input_tokens": 64, "reusable_tokens": reused,
         "chunks": [(i + 0.1, 1)], **LOOP}
        for i, reused in enumerate(reusable)
    ]  # fmt: skip
    requests, chunks = build(rows)
    count = PrefixCount(hits=hits, queries=queries, source="page", by_cache=by_cache)
    [group] = split(requests, chunks)
    [hits_of_cell] = prefix_hits([group], {0: count}, ["openai"] if caching else [])
    return hits_of_cell, group


@pytest.mark.parametrize(
    ("queries", "hits", "reusable", "caching", "kind"),
    [
        (20 * 64, 0, [0] * 20, True, None),
        (20 * 64, 700, [0] * 20, True, "cached"),
        (8 * 20 * 128, 7000, [0] * 20, True, "foreign_counters"),  # a replica, or a tenant
        (20 * 64, 19 * 48, [0] + [48] * 19, True, None),
        (20 * 64, 0, [0] + [48] * 19, True, "few_hits"),
        (20 * 64, 0, [0] + [48] * 19, False, None),  # it was to have no cache
    ],
)
def test_what_the_counters_of_a_prefix_cache_say(queries, hits, reusable, caching, kind):
    prefixes, group = of_cache(queries, hits, reusable, caching)
    facts = [fact.kind for fact in cell_notices(group, {}, prefixes)]
    assert [each for each in facts if each in ("cached", "few_hits", "foreign_counters")] == [kind] * bool(
        kind
    )
    assert (prefixes.reported is None) == (kind == "foreign_counters")


def test_caches_that_an_engine_counts_apart() -> None:
    prefixes, _ = of_cache(20 * 64, 640, [0] * 20, device=512, host=128)
    assert prefixes.by_cache == {"device": 0.4, "host": 0.1}
    table = prefix_table([prefixes])
    assert table is not None and [line[5:7] for line in table.lines] == [["40.0 %", "10.0 %"]]
    alone, _ = of_cache(20 * 64, 640, [0] * 20, device=640, host=0)
    assert len(prefix_table([alone]).lines[0]) == len(table.lines[0]) - 2
