"""Whether a cell can be believed."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.metrics.digits import digits
from harness.metrics.percentiles import Ordered, missing
from harness.metrics.rates import duration_s
from harness.metrics.samples import Group
from harness.schema.calibration import Calibration
from harness.schema.cell_notice import CellNotice
from harness.schema.fairness import TaskScores
from harness.schema.invalid_reason import InvalidReason
from harness.schema.load import Batch, ClosedLoop, Load
from harness.schema.online_summary import OnlineSummary
from harness.schema.settings import SHORT_CELL_S

#: A cell is invalid when the submit lag's p99 is above this, and above this share of the median TTFT. A
#: sample too small for a p99 is judged by its second highest lag: as with 100 requests, one may be late.
LAG_LIMIT_MS = 1.0
LAG_LIMIT_OF_TTFT = 0.05

#: A cell is invalid when a client process did more than this share of what it can.
CEILING_SHARE = 0.5

#: Requests of a closed loop for each one in flight, below which little but its beginning and end is measured.
MIN_ROUNDS = 3

#: What is said of requests that were late on connections that had to be opened.
OPENING = "all of these on a new connection"

#: What the notice of a cell of few seconds begins with.
BRIEF = "measured for"


def invalid_reasons(group: Group, calibration: Calibration | None = None) -> list[InvalidReason]:
    """Why one repeat is not to be believed; nothing where it is.

    Failures and the client's load count over the whole cell, lag and TTFT in its window.

    Args:
        calibration: What client processes sustain; None: not known, and not judged by.
    """
    everything = (group.whole or group).requests
    failed = int(everything["error"].notna().sum())
    above = [] if calibration is None else _too_busy(everything, group.load, calibration)
    if group.metrics.empty:
        unmeasured = group.whole is not None and group.requests.empty
        none = (
            InvalidReason("unmeasured", "no request was sent in the part that is measured")
            if unmeasured
            else InvalidReason("no_success", "no request succeeded")
        )
        return [none, *above]
    reasons = [InvalidReason("failures", f"{failed} of {len(everything)} requests failed")] if failed else []
    if isinstance(group.load, Batch):
        return reasons  # its clock runs from the first prompt that may be sent
    for who, lag, limit in _lags(group):
        if lag.judged_ms > limit:
            reasons.append(InvalidReason("late", f"{who} sent late: {lag.seen}{_opening(group, limit)}"))
    return reasons + above


def one_late(group: Group) -> list[CellNotice]:
    """A notice for each sender of fewer than 100 requests that sent one of them late."""
    return [
        CellNotice(
            kind="late",
            text=f"{who} sent one request late: submit lag {lag.highest_ms:.2f} ms, above {limit:.2f} ms",
        )
        for who, lag, limit in _lags(group)
        if lag.few and lag.judged_ms <= limit < lag.highest_ms
    ]


def clients_needed(requests: pd.DataFrame, load: Load, calibration: Calibration) -> int:
    """Client processes that would have done for the requests of a whole cell; 0: those that it had did."""
    return max((reason.clients or 0 for reason in _too_busy(requests, load, calibration)), default=0)


class _Lag(NamedTuple):
    """The submit lag of one sender: what is above the limit in words, the value that it is judged by, and the
    highest one."""

    seen: str
    judged_ms: float
    highest_ms: float
    few: bool

    @classmethod
    def of(cls, values: npt.NDArray[np.float64], limit_ms: float) -> _Lag:
        ordered, few = Ordered(values, None), bool(missing(99, values.size))
        second, highest = ordered.at_ranks([max(1, values.size - 1), values.size])
        judged = second if few else float(ordered.percentiles([99])[0])
        if few and values.size > 1:
            late = (
                f"{np.count_nonzero(values > limit_ms)} of {values.size} requests by over {limit_ms:.2f} ms"
            )
            return cls(f"{late} (second highest: {judged:.2f} ms)", judged, highest, few)
        statistic = "of the only request" if few else "p99"
        seen = f"submit lag {statistic} {judged:.2f} ms, above {limit_ms:.2f} ms"
        return cls(seen, judged, highest, few)


def _lags(group: Group) -> list[tuple[str, _Lag, float]]:
    """Each node that sent, or this machine's client, with its submit lag and the limit in ms."""
    lag, ttft = group.sample("submit_lag_ms").values, group.sample("ttft_ms").values
    if not lag.size or not ttft.size:
        return []
    limit = max(LAG_LIMIT_MS, LAG_LIMIT_OF_TTFT * float(np.median(ttft)))
    lag = group.metrics["submit_lag_ms"].to_numpy()
    known = np.isfinite(lag)
    if "host" not in group.requests or group.requests["host"].isna().all():
        return [("the client", _Lag.of(lag[known], limit), limit)]
    hosts = group.good["host"]
    of = {str(host): known & (hosts == host).to_numpy() for host in hosts.dropna().unique()}
    return [
        (f"node {host}", _Lag.of(lag[rows], limit), limit) for host, rows in sorted(of.items()) if rows.any()
    ]


def _opening(group: Group, limit_ms: float) -> str:
    """Where the client may have waited for the server: connections that it had to open."""
    late = group.metrics["submit_lag_ms"].to_numpy() > limit_ms
    if not group.good[late]["connection_reused"].eq(False).all():
        return ""
    return f"; {OPENING}, which the server may have been slow to accept"


def few_rounds(load: Load, sent: int) -> CellNotice | None:
    """Whether a closed loop of `sent` requests is over before it is steady."""
    if not isinstance(load, ClosedLoop) or sent >= MIN_ROUNDS * load.concurrency:
        return None
    text = f"{sent:,} requests for {load}: most are sent while the load begins or ends"
    return CellNotice(kind="short", text=text)


def too_brief(seconds: float, wanted_s: float = 0.0) -> CellNotice | None:
    """Whether a cell was measured for less than SHORT_CELL_S, or than was asked for."""
    if seconds >= max(wanted_s, SHORT_CELL_S):
        return None
    asked = (
        f" instead of the {wanted_s:g} s asked for: the load has no more requests"
        if wanted_s > seconds
        else ""
    )
    text = f"{BRIEF} {digits(seconds)} s{asked}; for numbers to publish use --settle 30 --min-duration 30"
    return CellNotice(kind="short", text=text)


def discredit(summary: OnlineSummary, why: str | None) -> OnlineSummary:
    """The summary of an engine whose answers are wrong: no figure of it counts. None: they are not."""
    if why is None:
        return summary
    return _with_reason(summary, InvalidReason("answers", f"its answers are wrong: {why}"))


def scored(summary: OnlineSummary, scores: TaskScores | None) -> OnlineSummary:
    """The summary with its engine's score; one that is far below another's makes it invalid."""
    own = next((score for score in scores.scores if score.label == summary.label), None) if scores else None
    if own is None:
        return summary
    known: dict[str, object] = {"accuracy": own.share, "accuracy_ci": own.ci}
    if found := own.worse or own.lower:
        why = f"it answers fewer items of the accuracy task rightly: {found}"
        known["notices"] = [*summary.notices, CellNotice(kind="accuracy", text=why)]
    summary = summary.model_copy(update=known)
    return _with_reason(summary, InvalidReason("accuracy", why)) if own.worse else summary


def _with_reason(summary: OnlineSummary, reason: InvalidReason) -> OnlineSummary:
    """The summary, invalid for one more reason."""
    return summary.model_copy(
        update={
            "valid": False,
            "invalid_reasons": [*summary.invalid_reasons, reason.text],
            "invalid_kinds": [*summary.invalid_kinds, reason.kind],
        }
    )


def _too_busy(requests: pd.DataFrame, load: Load, calibration: Calibration) -> list[InvalidReason]:
    """Each reason why the busiest client process may have been the bottleneck, over the whole cell."""
    seconds = duration_s(requests)
    if not seconds:
        return []
    of_each = requests.groupby("client")["chunks"].agg(["sum", "size"])
    busiest, together, clients = of_each.max() / seconds, of_each.sum() / seconds, len(of_each)
    ceiling = calibration.ceiling(clients)
    found = []
    for what, of, most in (
        ("chunks", "sum", ceiling.chunks_per_s),
        ("requests", "size", ceiling.requests_per_s),
    ):
        limit = CEILING_SHARE * most
        if busiest[of] > limit:
            needed = max(clients + 1, _processes(together[of] / limit, load))
            text = (
                f"a client process took {busiest[of]:,.0f} {what}/s, above half of the {most:,.0f} that it "
                f"can; --clients {needed} would do"
            )
            found.append(InvalidReason("busy", text, needed))
    return found


def _processes(limits: float, load: Load) -> int:
    """The fewest processes for a load of `limits` times what one may take. In a closed loop each of them has
    a whole number of requests in flight."""
    in_flight = load.concurrency if isinstance(load, ClosedLoop) else 0
    each = int(in_flight / limits)
    return ceil(in_flight / each) if each else ceil(limits)
