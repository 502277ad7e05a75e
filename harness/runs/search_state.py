"""One engine's search: its cells, what they say of its capacity, and what is measured next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from math import ceil

from harness.errors import UsageError
from harness.metrics.capacity import CONFIDENCE, Bounds, Knowledge, Trial
from harness.metrics.digits import per_cent
from harness.metrics.percentiles import needed
from harness.runs.journal import JournalEntry
from harness.schema.cell_notice import NoticeKind
from harness.schema.invalid_reason import InvalidKind
from harness.schema.limits import ERROR_RATE, LIMIT_HINT, GateTerm, parse_gate
from harness.schema.metrics import METRICS
from harness.schema.online_settings import OnlineSettings
from harness.schema.online_summary import OnlineSummary
from harness.schema.results import Skipped
from harness.schema.search import Bound, CapacityFound, CapacityRatio, SearchPlan, SearchResults, SearchTrial

#: Cells that may be invalid before an engine's search ends: what makes them so is not the engine's load.
MAX_INVALID = 3
#: A cell in which more requests than this share fail does not meet the limits, whatever these are.
MAX_FAILED = 0.01
#: Why a cell is invalid in which requests failed, where nothing else is wrong with it.
OF_FAILURES: frozenset[InvalidKind] = frozenset({"failures", "no_success"})
#: Notices of a queue that grew.
BEHIND: tuple[NoticeKind, ...] = ("behind", "growing")


def parse_limits(text: str) -> list[GateTerm]:
    """The limits of `--slo`, such as `ttft_p99<=200ms,tpot_p99<=30ms`.

    Raises:
        UsageError: One is no limit on a latency or a rate by itself, or none or every load would meet it.
    """
    terms = parse_gate(text, "limit")
    for term in terms:
        if term.relative:
            raise UsageError(f"the limit {term.text!r} is relative to another run", LIMIT_HINT)
        lower_is_better = term.metric == ERROR_RATE or METRICS[term.metric].lower_is_better
        if term.at_most != lower_is_better:
            side = "at most" if lower_is_better else "at least"
            raise UsageError(
                f"the limit {term.text!r} asks for the worse: a good value is {side} the limit",
                f"write it with {'<=' if lower_is_better else '>='}",
            )
        if term.metric == ERROR_RATE and term.limit >= 1:
            raise UsageError(f"every load meets the limit {term.text!r}", "give a share below 100 %")
        if term.metric != ERROR_RATE and term.limit <= 0:
            always = "no load" if lower_is_better else "every load"
            raise UsageError(f"{always} meets the limit {term.text!r}", "give a limit above 0")
    return terms


def check_limits(terms: Sequence[GateTerm], settings: OnlineSettings) -> None:
    """Raises UsageError where no cell of these settings has a value for a limit."""
    for term in terms:
        if term.metric == "goodput_req_per_s":
            raise UsageError(
                f"the limit {term.text!r} is on requests within limits, which are not given",
                "give those limits",
            )
        if term.metric == "session_ms" and settings.turns is None and settings.loads[0].kind != "trace":
            raise UsageError(f"the limit {term.text!r} needs sessions", "give --dataset and --turns")


def enough_requests(what: str, statistic: str, n: int, measured: float = 1.0) -> None:
    """Raises UsageError where a cell of `n` requests, of which that share is measured, is too small for a
    percentile."""
    if not (statistic.startswith("p") and statistic[1:].isdigit()):
        return
    least = ceil(needed(int(statistic[1:])) / measured)
    if n < least:
        raise UsageError(
            f"{what} needs at least {least} requests in each cell, and there are {n}", f"give --n {least}"
        )


class EngineSearch:
    """The search of the engine with that label."""

    def __init__(self, plan: SearchPlan, label: str) -> None:
        self.plan, self.label = plan, label
        self.trials: list[SearchTrial] = []
        self._terms = parse_limits(plan.limits)
        self._known = Knowledge(Bounds(plan.lowest, plan.highest, whole=plan.by == "concurrency"), plan.first)

    def take(self, summary: OnlineSummary, start: int) -> None:
        """A cell was measured by that start of the engine's server."""
        trial = self._judge(summary, start)
        if not self.trials or self.trials[-1].start != start:
            self._known.start()
        self.trials.append(trial)
        if trial.met is not None:
            self._known.add(Trial(trial.value, trial.met))

    @property
    def has_trials(self) -> bool:
        """Whether a cell says anything of the capacity."""
        return bool(self._known.trials)

    @property
    def guessed(self) -> bool:
        """Whether all that is known is that the capacity is above some load, or below one."""
        return self._bound is None and len({trial.met for trial in self._known.trials}) == 1

    @property
    def next_value(self) -> float:
        """The load that is measured next."""
        return self._known.next_load()

    @property
    def ended(self) -> str:
        """Why no more is to be measured; empty while there is."""
        plan, known = self.plan, self._known
        if known.trials and known.known_within(plan.tolerance):
            return f"known within {per_cent(plan.tolerance)}"
        if self._bound == "heaviest":
            return f"the limits are met at the heaviest load, {plan.amount(plan.highest)}"
        if self._bound == "lightest":
            return f"the limits are not met at the lightest load, {plan.amount(plan.lowest)}"
        if (invalid := sum(trial.met is None for trial in self.trials)) >= MAX_INVALID:
            return f"{invalid} cells were invalid"
        if len(self.trials) >= plan.cells:
            return f"{len(self.trials)} cells were measured"
        return ""

    def found(self, engine: str, variant: str | None, otherwise: str) -> CapacityFound:
        """What is known now.

        Args:
            otherwise: Why no more was measured, where there is more to measure.
        """
        ends = self._known.capacity() if self.has_trials else None
        return CapacityFound(
            engine=engine,
            variant=variant,
            label=self.label,
            value=None if ends is None or self.guessed else ends.value,
            low=ends and ends.low,
            high=ends and ends.high,
            bound=self._bound,
            trials=self.trials,
            ended=self.ended or otherwise,
        )

    @property
    def _bound(self) -> Bound | None:
        """The end of the loads that the capacity is beyond."""
        if not self._known.exhausted:
            return None
        return "heaviest" if self._known.trials[-1].met else "lightest"

    def against(self, other: EngineSearch, pairs: int) -> CapacityRatio:
        """Its capacity as a multiple of the other's, judged as one of so many pairs."""
        ends = self._known.times(other._known, 1 - (1 - CONFIDENCE) / pairs)
        more = ends.low is not None and ends.low > 1
        less = ends.high is not None and ends.high < 1
        return CapacityRatio(
            a=self.label,
            b=other.label,
            value=ends.value,
            low=ends.low,
            high=ends.high,
            verdict="more" if more else "less" if less else "no difference shown",
        )

    def _judge(self, summary: OnlineSummary, start: int) -> SearchTrial:
        """Whether a cell met every limit; None where it does not count, as it is invalid. One that is invalid
        by failed requests alone counts: it was too heavy. One in which the queue grew did not meet them, as
        later requests would miss the limits."""
        failed = failed_share(summary)
        measured = {term.text: value_of(summary, term) for term in self._terms}
        held = all(holds(term, measured[term.text]) for term in self._terms)
        kinds = summary.invalid_kinds
        counts = summary.valid or (bool(kinds) and OF_FAILURES.issuperset(kinds))
        behind = any(notice.kind in BEHIND for notice in summary.notices)
        return SearchTrial(
            load=summary.load,
            value=self.plan.value(summary.load),
            repeat=summary.repeat or 0,
            start=start,
            met=(held and failed <= MAX_FAILED and not behind) if counts else None,
            measured=measured,
            behind=behind,
        )


def failed_share(summary: OnlineSummary) -> float:
    """Of a cell's requests."""
    return summary.num_error / max(1, summary.num_requests)


def value_of(summary: OnlineSummary, term: GateTerm) -> float | None:
    """What a limit is on; None where no request succeeded."""
    if term.metric == ERROR_RATE:
        return failed_share(summary)
    return summary.value(term.metric, term.statistic) if summary.num_success else None


def holds(term: GateTerm, value: float | None) -> bool:
    """Whether a value is on the right side of its limit; none is not."""
    return value is not None and (value <= term.limit if term.at_most else value >= term.limit)


def searches_of(
    plan: SearchPlan,
    labels: Sequence[str],
    entries: Iterable[JournalEntry],
    summaries: Iterable[OnlineSummary],
) -> dict[str, EngineSearch]:
    """The searches of these engines with all cells of the journal, by label.

    Args:
        summaries: Of each cell, by itself.
    """
    by_cell = {(s.label, s.load, s.repeat): s for s in summaries if s.repeat is not None}
    searches = {label: EngineSearch(plan, label) for label in labels}
    for entry in entries:
        if entry.label in searches:
            searches[entry.label].take(by_cell[entry.label, entry.load, entry.repeat], entry.start or 0)
    return searches


def search_results(
    plan: SearchPlan,
    entries: Sequence[JournalEntry],
    summaries: Sequence[OnlineSummary],
    skipped: Sequence[Skipped],
    *,
    interrupted: bool,
) -> SearchResults:
    """What the cells of a search say, engines in the order of the summaries.

    Args:
        skipped: What could not be measured.
        interrupted: Whether the user ended it early.
    """
    refs = {summary.label: (summary.engine, summary.variant) for summary in summaries}
    searches = searches_of(plan, list(refs), entries, summaries)
    otherwise = "it was interrupted" if interrupted else "the time was over"
    ends = dict.fromkeys(refs, otherwise)
    ends |= dict.fromkeys((fault.label for fault in skipped), "its server could not be measured any further")
    known = [search for search in searches.values() if search.has_trials and not search.guessed]
    pairs = list(combinations(known, 2))
    return SearchResults(
        plan=plan,
        engines=[search.found(*refs[label], ends[label]) for label, search in searches.items()],
        ratios=[a.against(b, len(pairs)) for a, b in pairs],
    )
