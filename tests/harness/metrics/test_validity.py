"""Facts that make a cell invalid: requests sent late, on each node, and clients too busy."""

from __future__ import annotations

import pytest

from harness.metrics.samples import split
from harness.metrics.summary import SummaryInputs, summarize
from harness.metrics.validity import clients_needed, invalid_reasons, late_alone, one_late, with_harmless_lag
from harness.report.tables.cells import nodes_table
from harness.schema.load import ClosedLoop, Load, TraceLoad, load_text
from harness.schema.machines import Calibration, ClientCeiling, Host, HostCell, HostClock, MachineKey
from tests.harness.metrics.conftest import Tables, build, compare

CLOCK = HostClock(
    offset_s=0.5, bound_ms=0.3, round_trip_ms=0.6, drift_ppm=2, drift_bound_ppm=9, start_bound_ms=0.4
)


def rows(late_s: dict[str | None, float]) -> list[dict[str, object]]:
    """Fifty requests of each node, sent so late, with a TTFT of 10 ms."""
    return [
        {
            "host": host,
            "t_sched": t,
            "t_sent": t + late,
            "chunks": [(t + late + 0.01, 1), (t + late + 0.02, 1)],
        }
        for host, late in late_s.items()
        for t in range(50)
    ]


@pytest.mark.parametrize(
    ("late_s", "named"),
    [
        ({"a": 0.0002, "b": 0.0003}, []),
        ({"a": 0.0002, "b": 0.02}, ["b"]),
        ({"a": 0.03, "b": 0.02}, ["a", "b"]),
        ({None: 0.02}, [None]),
    ],
)
def test_a_late_node_is_named(late_s: dict[str | None, float], named: list[str | None]) -> None:
    [group] = split(*build(rows(late_s)))
    reasons = invalid_reasons(group)
    assert [reason.values.get("node") for reason in reasons] == named
    assert {reason.kind for reason in reasons} <= {"late"}


@pytest.mark.parametrize(
    ("count", "late", "valid", "noticed"),
    [
        (60, 0, True, False),
        (60, 1, True, True),
        (60, 2, False, False),
        (60, 60, False, False),
        (1, 1, False, False),
        (99, 1, True, True),
        (200, 1, True, False),  # p99 has its own tolerance
        (200, 3, False, False),
    ],
)
def test_one_late_request_of_few_is_a_notice(count: int, late: int, valid: bool, noticed: bool) -> None:
    lags = [0.05] * late + [0.0002] * (count - late)
    sent = [
        {"t_sched": t, "t_sent": t + lag, "chunks": [(t + lag + 0.01, 1), (t + lag + 0.02, 1)]}
        for t, lag in enumerate(lags)
    ]
    [group] = split(*build(sent))
    reasons, notices = invalid_reasons(group), one_late(group)
    assert (not reasons, bool(notices)) == (valid, noticed)
    assert not noticed or notices[0].values == pytest.approx({"lag_ms": 50, "limit_ms": 1})
    if not valid:
        statistic = {1: "only", 60: "second highest", 200: "p99"}[count]
        values = reasons[0].values
        assert (values["statistic"], values["late"], values["requests"]) == (statistic, late, count)
        assert (values["lag_ms"], values["limit_ms"]) == pytest.approx((50, 1))


def two_engines(ttft_s: tuple[float, float], lag_s: float, repeats: int = 3) -> Tables:
    """Two engines with such a TTFT, whose client was late at the second alone."""
    return build(
        [
            {
                "cell": 2 * repeat + place,
                "label": label,
                "repeat": repeat,
                "t_sched": t,
                "t_sent": t + place * lag_s,
                "chunks": [
                    (t + place * lag_s + ttft + repeat / 1e3, 1),
                    (t + place * lag_s + ttft + 0.05, 1),
                ],
            }
            for repeat in range(repeats)
            for place, (label, ttft) in enumerate(zip("ab", ttft_s, strict=True))
            for t in range(10)
        ]
    )


@pytest.mark.parametrize(
    ("ttft_s", "lag_s", "valid"),
    [
        ((0.01, 0.04), 0.0029, True),  # a tenth of 30 ms
        ((0.01, 0.04), 0.005, False),
        ((0.04, 0.04), 0.0029, False),  # no difference is claimed, and lag may have hidden one
    ],
)
def test_lag_that_can_change_no_verdict_is_a_notice(
    ttft_s: tuple[float, float], lag_s: float, valid: bool
) -> None:
    tables = two_engines(ttft_s, lag_s)
    strict = summarize(split(*tables), SummaryInputs())
    judged = with_harmless_lag(strict, compare(*tables))
    late = [each for each in judged if each.label == "b"]
    assert not any(each.valid for each in strict if each.label == "b") and len(late) == 4
    assert {each.valid for each in late} == {valid}
    kinds = {fact.kind for each in late for fact in (*each.invalid_reasons, *each.notices)} - {"brief"}
    assert kinds == {"harmless_lag" if valid else "late"}
    assert [each for each in judged if each.label == "a"] == [each for each in strict if each.label == "a"]


@pytest.mark.parametrize(
    ("lag_s", "error", "late"), [(0.02, None, True), (0, None, False), (0.02, "x", False)]
)
def test_a_cell_that_lag_alone_makes_invalid(lag_s: float, error: str | None, late: bool) -> None:
    """One in which requests failed is not measured again."""
    [first, *others] = rows({None: lag_s})
    [group] = split(*build([first | {"error": error}, *others]))
    assert (late_alone(group) is not None) == late


def test_the_table_has_each_node_with_its_own_lag() -> None:
    groups = split(*build(rows({"a": 0.0002, "b": 0.02})))
    senders = {0: [HostCell(name=name, clients=[0], requests=50, clock=CLOCK) for name in "ab"]}
    hosts = [Host(name="a", address="h", role="load", side=0, cores=2, niceness=15)]
    table = nodes_table(groups, senders, hosts)
    lag = table.headers.index("submit lag p99 ms")
    assert [row[lag].value for row in table.rows] == [pytest.approx(0.2), pytest.approx(20)]
    assert any(note.startswith("a: ") for note in table.notes)
    assert nodes_table(groups, {}, []) is None


MACHINE = MachineKey(cpu="", cores=8, kernel="", python="", uvloop="")


def calibration(*ceilings: tuple[int, float, float]) -> Calibration:
    """Of processes, with what each can: chunks and requests a second."""
    found = [
        ClientCeiling(
            processes=processes,
            chunks_per_s=chunks,
            chunks_per_cpu_s=chunks,
            requests_per_s=requests,
            limit="client",
        )
        for processes, chunks, requests in ceilings
    ]
    return Calibration(machine=MACHINE, created="now", quick=True, ceilings=found, errors=[])


def sent(load: Load, *requests: int) -> Tables:
    """A second in which each client process sends so many requests of two chunks each."""
    return build(
        [
            {"load": load_text(load), "client": client, "chunks": [(0.5, 1), (0.999, 1)]}
            for client, count in enumerate(requests)
            for _ in range(count)
        ]
    )


@pytest.mark.parametrize(
    ("load", "requests", "ceilings", "needed"),
    [
        (ClosedLoop(concurrency=64), [50, 50], [(1, 1e9, 100)], 0),
        (ClosedLoop(concurrency=64), [122, 122, 123, 123], [(1, 1e9, 200)], 5),
        (ClosedLoop(concurrency=64), [125, 125, 125, 125], [(1, 1e9, 200)], 6),  # 13 of 64 are too many
        (TraceLoad(scale=1), [125, 125, 125, 125], [(1, 1e9, 200)], 5),
        (ClosedLoop(concurrency=4), [130], [(1, 1e9, 200)], 2),
        (ClosedLoop(concurrency=4), [500], [(1, 1e9, 2)], 500),
        (ClosedLoop(concurrency=64), [90, 110], [(1, 1e9, 200)], 3),  # two would do if dealt evenly
        (ClosedLoop(concurrency=64), [50, 50], [(1, 100, 1e9)], 4),
        (ClosedLoop(concurrency=64), [50, 50], [(1, 150, 50)], 4),  # both: the more counts
        (ClosedLoop(concurrency=64), [60], [(1, 1e9, 200), (2, 1e9, 100)], 0),
        (ClosedLoop(concurrency=64), [60, 60], [(1, 1e9, 200), (2, 1e9, 100)], 3),
        (ClosedLoop(concurrency=64), [60, 60], [(1, 1e9, 200), (3, 1e9, 100)], 0),
    ],
)
def test_how_many_processes_would_do(
    load: Load, requests: list[int], ceilings: list[tuple[int, float, float]], needed: int
) -> None:
    """By the ceiling of as many processes as there were."""
    known = calibration(*ceilings)
    [group] = split(*sent(load, *requests))
    assert clients_needed(group.requests, load, known) == needed
    reasons = [reason for reason in invalid_reasons(group, known) if reason.kind == "busy"]
    assert bool(reasons) == bool(needed)
    assert max((reason.values["clients"] for reason in reasons), default=0) == needed
    assert not any(reason.kind == "busy" for reason in invalid_reasons(group))
    each = summarize(split(*sent(load, *requests)), SummaryInputs(calibration=known))
    assert [summary.clients_needed for summary in each] == [needed or None] * 2


def failing(tolerated: bool | None) -> Tables:
    """Two engines of 100 requests; every tenth of `b` fails, and its others are faster."""
    return build(
        [
            {
                "cell": place,
                "label": label,
                "t_sched": t,
                "t_sent": t,
                "chunks": [(t + ttft, 1), (t + ttft + 0.01, 1)],
                **({"error": "http_429", "tolerated": tolerated} if place and t % 10 == 0 else {}),
            }
            for place, (label, ttft) in enumerate((("a", 0.2), ("b", 0.1)))
            for t in range(100)
        ]
    )


def test_a_server_that_fails_never_looks_faster() -> None:
    a, _, b, _ = summarize(split(*failing(tolerated=True)), SummaryInputs())
    assert a.valid and b.valid and b.num_error == 10
    assert b.ttft_ms.p50 == pytest.approx(100) and b.ttft_ms.p90 is None
    assert (b.ttft_ms.p99, b.ttft_ms.mean, b.ttft_ms.max, b.ttft_ms.censored) == (None, None, None, 10)
    assert {"p90", "p95", "p99"} <= set(b.ttft_ms.withheld) and "p50" not in b.ttft_ms.withheld
    assert [fact.values["failed"] for fact in b.notices if fact.kind == "tolerated"] == [10]
    pairs = {(pair.metric, pair.statistic) for pair in compare(*failing(tolerated=True))}
    assert ("ttft_ms", "p50") in pairs and ("ttft_ms", "p99") not in pairs
    assert a.submit_lag_ms.censored == b.submit_lag_ms.censored == 0


@pytest.mark.parametrize("tolerated", [False, None])
def test_more_failures_than_are_tolerated_make_a_cell_invalid(tolerated: bool | None) -> None:
    *_, b, _ = summarize(split(*failing(tolerated)), SummaryInputs())
    assert [(fact.kind, fact.values["failed"]) for fact in b.invalid_reasons] == [("failures", 10)]
    assert b.ttft_ms.p99 == pytest.approx(100) and not b.ttft_ms.censored
