"""Facts that make a cell invalid, and those of cells too short to judge.

A function that returns facts is named after what it states: `one_late` returns facts `one_late`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.metrics.percentiles import Ordered, missing
from harness.metrics.rankings import REAL
from harness.metrics.rates import duration_s
from harness.metrics.samples import Group
from harness.schema.facts import Fact, FactKind, Value
from harness.schema.fairness import TaskScores
from harness.schema.load import Batch, ClosedLoop, Load
from harness.schema.machines import Calibration
from harness.schema.metrics import METRICS
from harness.schema.results import Comparison, OnlineSummary
from harness.schema.settings import SHORT_CELL_S

#: A cell is invalid when the submit lag's p99 is above this, and above this share of the median TTFT. A
#: sample too small for a p99 is judged by its second highest lag: as with 100 requests, one may be late.
LAG_LIMIT_MS = 1.0
LAG_LIMIT_OF_TTFT = 0.05

#: A cell that lasts this share of the time asked for lasts long enough: its client stops when the last answer
#: ends, and what is measured ends a little before.
NEARLY = 0.95
#: Lag that is at most this share of a difference cannot have made it.
HARMLESS_SHARE = 0.1
#: Latencies that begin when a request is sent, which lag may shift.
_FROM_SENDING = ("ttft_ms", "ttfo_ms", "e2e_ms")

#: A cell is invalid when more than this share of its tool calls are wrong: models err less often.
MOST_WRONG_CALLS = 0.1

#: A cell is invalid when a client process did more than this share of what it can.
CEILING_SHARE = 0.5

#: Requests of a closed loop for each one in flight, below which little but its beginning and end is measured.
MIN_ROUNDS = 3


def invalid_reasons(group: Group, calibration: Calibration | None = None) -> list[Fact]:
    """State why one repeat is not to be believed; nothing where it is.

    Failures and the client's load count over the whole cell, lag and TTFT in its window.

    Args:
        calibration: what client processes sustain; None: not known, and not judged by.
    """
    facts = _invalid(group)
    if not isinstance(group.load, Batch):
        facts += _too_busy(group.whole.requests, group.load, calibration)
    return [fact.within(group.label, group.load, group.repeat) for fact in facts]


def _invalid(group: Group) -> list[Fact]:
    """State what is wrong with the cell whatever the client's ceiling is."""
    everything = group.whole.requests
    has_failed = everything["error"].notna()
    if "tolerated" in everything:
        has_failed &= ~everything["tolerated"].eq(True)
    stopped = int((everything["error"] == "stopped").sum())
    failed = int(has_failed.sum()) - stopped
    if group.metrics.empty:
        unmeasured = group.uncut is not None and group.requests.empty
        return [Fact.of("unmeasured" if unmeasured else "no_success")]
    unsent = {"stopped": stopped} if stopped else {}
    failures = Fact.of("failures", failed=failed, requests=len(everything) - stopped, **unsent)
    if isinstance(group.load, Batch):
        return [failures] if failed else []  # its clock runs from the first prompt that may be sent
    late = [Fact.of("late", **lag.values) for lag in _lags(group) if lag.judged_ms > lag.limit_ms]
    wrong = [fact for fact in wrong_calls(group) if fact.kind == "invalid_calls"]
    return [*([failures] if failed else []), *late, *wrong]


def wrong_calls(group: Group) -> list[Fact]:
    """State how many tool calls of a cell fit no schema of a tool that its requests offer."""
    requests = group.whole.requests
    if "judged_calls" not in requests or not (calls := int(requests["judged_calls"].sum())):
        return []
    wrong = int(requests["bad_calls"].sum())
    kind: FactKind = "invalid_calls" if wrong > MOST_WRONG_CALLS * calls else "some_invalid_calls"
    return [Fact.of(kind, wrong=wrong, calls=calls)] if wrong else []


def late_alone(group: Group) -> Fact | None:
    """Return the first fact of a cell that only its client's lateness makes invalid; None of other cells."""
    facts = _invalid(group)
    return facts[0] if {fact.kind for fact in facts} == {"late"} else None


def with_harmless_lag(
    summaries: Sequence[OnlineSummary], comparisons: Iterable[Comparison]
) -> list[OnlineSummary]:
    """Take lag that can have made no verdict from the reasons why cells are invalid: it becomes a notice.

    It is compared with the smallest difference that is claimed of the engine at that load, a rate's as the
    time of a request that it means. Where none is claimed, lag may have hidden one.
    """
    e2e_ms = {(s.label, s.load): s.latency("e2e_ms").mean or 0.0 for s in summaries if s.repeat is None}
    claimed: dict[tuple[str, Load], float] = {}
    for pair in comparisons:
        is_latency = METRICS[pair.metric].is_latency
        of_engine = isinstance(pair.load, ClosedLoop) or not METRICS[pair.metric].set_by_load
        if pair.verdict in REAL and (pair.metric in _FROM_SENDING or (not is_latency and of_engine)):
            for place in ((pair.a, pair.load), (pair.b, pair.load)):
                base = pair.value_b if is_latency else e2e_ms[place]
                claimed[place] = min(claimed.get(place, math.inf), abs(pair.ratio - 1) * base)
    return [_without_lag(each, claimed.get((each.label, each.load), 0.0)) for each in summaries]


def _without_lag(summary: OnlineSummary, difference_ms: float) -> OnlineSummary:
    """Move lag from the reasons to the notices where it is harmless for such a difference."""
    most = HARMLESS_SHARE * difference_ms
    late = [fact for fact in summary.invalid_reasons if fact.kind == "late"]
    harmless = [fact for fact in late if float(fact.values["lag_ms"]) <= most]
    reasons = [fact for fact in summary.invalid_reasons if fact not in harmless]
    notices = [
        Fact(
            kind="harmless_lag",
            scope=fact.scope,
            values={name: fact.values[name] for name in ("node", "lag_ms", "limit_ms") if name in fact.values}
            | {"difference_ms": difference_ms},
        )
        for fact in harmless
    ]
    changes = {"valid": not reasons, "invalid_reasons": reasons, "notices": [*summary.notices, *notices]}
    return summary.model_copy(update=changes) if harmless else summary


def one_late(group: Group) -> list[Fact]:
    """State each sender of fewer than 100 requests that sent one of them late."""
    return [
        Fact.of("one_late", **lag.sender, lag_ms=lag.highest_ms, limit_ms=lag.limit_ms)
        for lag in _lags(group)
        if lag.few and lag.judged_ms <= lag.limit_ms < lag.highest_ms
    ]


def clients_needed(requests: pd.DataFrame, load: Load, calibration: Calibration) -> int:
    """Number of client processes that would do for the requests of a whole cell; 0: those it had did."""
    return clients_of(_too_busy(requests, load, calibration))


def clients_of(reasons: Iterable[Fact]) -> int:
    """Number of client processes that would do by the facts of a cell; 0: those it had did."""
    return max((int(fact.values["clients"]) for fact in reasons if fact.kind == "busy"), default=0)


@dataclass(frozen=True)
class _Lag:
    """The submit lag of one sender, in ms.

    Attributes:
        sender: the node as a value of a fact; nothing for this machine's client.
        late: requests above the limit.
        judged_ms: the p99, or of a sample too small for it the second highest.
    """

    sender: dict[str, Value]
    late: int
    requests: int
    judged_ms: float
    highest_ms: float
    limit_ms: float
    few: bool

    @staticmethod
    def of(sender: dict[str, Value], lag_ms: npt.NDArray[np.float64], limit_ms: float) -> _Lag:
        """Judge (n,) lags in ms, n at least 1."""
        ordered, few = Ordered(lag_ms, None), bool(missing(99, lag_ms.size))
        second, highest = ordered.at_ranks([max(1, lag_ms.size - 1), lag_ms.size])
        judged = float(second) if few else float(ordered.percentiles([99])[0])
        late = int(np.count_nonzero(lag_ms > limit_ms))
        return _Lag(sender, late, lag_ms.size, judged, float(highest), limit_ms, few)

    @property
    def values(self) -> dict[str, Value]:
        """Values of a fact `late`."""
        statistic = "p99" if not self.few else "second highest" if self.requests > 1 else "only"
        return self.sender | {
            "statistic": statistic,
            "late": self.late,
            "requests": self.requests,
            "lag_ms": self.judged_ms,
            "limit_ms": self.limit_ms,
        }


def _lags(group: Group) -> list[_Lag]:
    """Submit lag of each node that sent, or of this machine's client."""
    if not group.sample("submit_lag_ms").size or not group.sample("ttft_ms").size:
        return []
    limit = lag_limit_ms(group)
    lag = group.metrics["submit_lag_ms"].to_numpy()
    finite = np.isfinite(lag)
    if "host" not in group.requests or group.requests["host"].isna().all():
        return [_Lag.of({}, lag[finite], limit)]
    hosts = group.good["host"]
    rows_by_host = {str(host): finite & (hosts == host).to_numpy() for host in hosts.dropna().unique()}
    return [
        _Lag.of({"node": host}, lag[rows], limit) for host, rows in sorted(rows_by_host.items()) if rows.any()
    ]


def lag_limit_ms(group: Group) -> float:
    """Return how late a request may be sent, in ms."""
    return max(LAG_LIMIT_MS, LAG_LIMIT_OF_TTFT * float(np.median(group.sample("ttft_ms").values)))


def few_rounds(load: Load, sent: int) -> list[Fact]:
    """State that a closed loop of `sent` requests is over before it is steady."""
    if not isinstance(load, ClosedLoop) or sent >= MIN_ROUNDS * load.concurrency:
        return []
    return [Fact.of("few_rounds", requests=sent).within(load=load)]


def too_brief(seconds: float, wanted_s: float = 0.0) -> Fact | None:
    """State that a cell was measured for less than SHORT_CELL_S, or than nearly all of `wanted_s`."""
    wanted_s = 0.0 if seconds >= NEARLY * wanted_s else wanted_s
    if seconds >= max(wanted_s, SHORT_CELL_S):
        return None
    target = {"wanted_s": wanted_s} if wanted_s > seconds else {}
    return Fact.of("brief", seconds=seconds, **target)


def discredit(summary: OnlineSummary, why: Fact | None) -> OnlineSummary:
    """Make the summary of an engine whose answers are wrong invalid. None: they are not."""
    return summary if why is None else _with_reason(summary, why)


def scored(summary: OnlineSummary, scores: TaskScores | None) -> OnlineSummary:
    """Add its engine's score to a summary; one that is far below another's makes it invalid."""
    score = next((score for score in scores.scores if score.label == summary.label), None) if scores else None
    if score is None:
        return summary
    summary = summary.model_copy(update={"accuracy": score.share, "accuracy_ci": score.ci})
    if score.below is None:
        return summary
    if score.below.kind == "inaccurate":
        return _with_reason(summary, score.below)
    below = score.below.within(summary.label, summary.load, summary.repeat)
    return summary.model_copy(update={"notices": [*summary.notices, below]})


def _with_reason(summary: OnlineSummary, reason: Fact) -> OnlineSummary:
    """Make the summary invalid for one more reason."""
    reason = reason.within(summary.label, summary.load, summary.repeat)
    return summary.model_copy(update={"valid": False, "invalid_reasons": [*summary.invalid_reasons, reason]})


def _too_busy(requests: pd.DataFrame, load: Load, calibration: Calibration | None) -> list[Fact]:
    """State `busy` for each of chunks and requests of which the busiest client process had too many a second.

    The whole cell counts.
    """
    seconds = duration_s(requests)
    if calibration is None or not seconds:
        return []
    clients, sender = np.unique(requests["client"], return_inverse=True)
    ceiling, chunks = calibration.ceiling(len(clients)), requests["chunks"].to_numpy(np.float64)
    facts = []
    for unit, of_each, most in (
        ("chunks", np.bincount(sender, chunks), ceiling.chunks_per_s),
        ("requests", np.bincount(sender), ceiling.requests_per_s),
    ):
        limit, busiest = CEILING_SHARE * most, float(of_each.max() / seconds)
        if busiest > limit:
            needed = max(len(clients) + 1, _processes(of_each.sum() / seconds / limit, load))
            busy = Fact.of("busy", unit=unit, per_s=busiest, ceiling_per_s=float(most), clients=needed)
            facts.append(busy)
    return facts


def _processes(limits: float, load: Load) -> int:
    """Fewest client processes for a load of `limits` times what one may take.

    In a closed loop each has a whole number of requests in flight.
    """
    in_flight = load.concurrency if isinstance(load, ClosedLoop) else 0
    each = int(in_flight / limits)
    return math.ceil(in_flight / each) if each else math.ceil(limits)
