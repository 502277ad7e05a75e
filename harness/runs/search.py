"""`bench search`: the highest load within limits, for each engine.

Each load is chosen by what the cells before have shown. Engines take turns in balanced orders: a few cells of
each, which one start of its server answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import inf
from time import monotonic

from harness.engines.base import EngineVariant
from harness.metrics.capacity import CONFIDENCE, Bounds, Knowledge, Trial
from harness.metrics.digits import per_cent
from harness.metrics.samples import Group
from harness.runs.journal import JournalEntry
from harness.runs.limits import BEHIND, MAX_FAILED, OF_FAILURES, failed_share, holds, parse_limits, value_of
from harness.runs.schedule import Cell, Done, Plan, balanced_orders, engine_seed
from harness.schema.machines import MachineLoad
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import OnlineResults, OnlineSummary, Skipped
from harness.schema.search import Bound, CapacityFound, CapacityRatio, SearchPlan, SearchResults, SearchTrial
from harness.traces.sampling import prompt_seed, shape_seed

#: Cells that may be invalid before an engine's search ends: what makes them so is not the engine's load.
MAX_INVALID = 3
#: Sets the seeds of a search apart from those of other runs.
_SEARCH = 2


class Search(Plan):
    """The search of every engine.

    Args:
        settings: Of the run; its loads are of the kind that is searched.
        interrupted: Whether the user ended the run early.
    """

    def __init__(
        self,
        plan: SearchPlan,
        settings: OnlineSettings,
        engine_variants: Sequence[EngineVariant],
        done: Done,
        *,
        interrupted: bool = False,
    ) -> None:
        self.plan, self.settings = plan, settings
        self._variants = {variant.label: variant for variant in engine_variants}
        self._interrupted = interrupted
        #: Cells of an earlier command, whose servers are gone.
        self._before = len(done.entries)
        self._end = monotonic() + (inf if plan.max_seconds is None else plan.max_seconds)
        self._begun: dict[tuple[str, int], float] = {}
        #: Seconds from the beginning of an engine's last start to the end of its first cell.
        self._to_first_cell: dict[str, float] = {}

    def next(self, done: Done) -> list[Cell] | None:
        searches, failed = self._searches(done), {fault.label for fault in done.failed}
        starts = {label: search.next_start for label, search in searches.items()}
        for label in self._in_turn(starts):
            if label not in failed and not searches[label].ended and self._allows_start(label):
                self._begun[label, starts[label]] = monotonic()
                return [self._cell(searches[label], starts[label], done)]
        return None

    def next_of_server(self, cell: Cell, done: Done) -> Cell | None:
        label, start = cell.engine_variant.label, cell.start
        assert start is not None
        search = self._searches(done)[label]
        here = sum(trial.start == start for trial in search.trials)
        if here == 1:
            self._to_first_cell[label] = monotonic() - self._begun[label, start]
        seconds = (self.settings.settle or 0.0) + done.entries[-1].figures.duration_s
        if search.ended or here >= self.plan.cells_per_start or monotonic() + seconds > self._end:
            return None
        return self._cell(search, start, done)

    def expected(self, done: Done) -> int:
        return max(len(done.entries), self.plan.cells * len(self._variants))

    def result(self, done: Done, results: OnlineResults, groups: Sequence[Group]) -> OnlineResults:
        capacities = search_results(
            self.plan, done.entries, results.summaries, results.skipped, interrupted=self._interrupted
        )
        return results.model_copy(update={"search": capacities})

    def _searches(self, done: Done) -> dict[str, EngineSearch]:
        """Return the search of each engine with all of its cells, by label."""
        return searches_of(self.plan, list(self._variants), done.entries)

    def _in_turn(self, starts: dict[str, int]) -> list[str]:
        """Order the engines: fewest starts first, of these as the balanced order of that turn has them."""
        labels = list(self._variants)
        orders = balanced_orders(len(labels), max(starts.values()) + 1, self.settings.seed)

        def turn(label: str) -> tuple[int, int]:
            return starts[label], orders[starts[label]].index(labels.index(label))

        return sorted(labels, key=turn)

    def _allows_start(self, label: str) -> bool:
        """Return True if a cell of a new start would end in time. An engine's first start always begins."""
        return monotonic() + self._to_first_cell.get(label, -inf) <= self._end

    def _cell(self, search: EngineSearch, start: int, done: Done) -> Cell:
        variant, settings = self._variants[search.label], self.settings
        load = self.plan.load(search.next_value, settings.loads[0])
        number = len(search.trials)
        seed = engine_seed(settings, variant, list(self._variants.values()))
        return Cell(
            done.next_index,
            variant,
            load,
            repeat=sum(trial.load == load for trial in search.trials),
            load_seed=prompt_seed([*seed, _SEARCH, start, number]),
            shape_seed=shape_seed([settings.seed, number], _SEARCH),
            start=start,
        )


class EngineSearch:
    """The search of the engine with that label."""

    def __init__(self, plan: SearchPlan, label: str) -> None:
        self.plan, self.label = plan, label
        self.trials: list[SearchTrial] = []
        self._terms = parse_limits(plan.limits)
        self._known = Knowledge(Bounds(plan.lowest, plan.highest, whole=plan.closed), plan.first)

    def take(self, summary: OnlineSummary, start: int, machine: MachineLoad | None = None) -> None:
        """A cell was measured by that start of the engine's server."""
        trial = self._judge(summary, start)
        if machine is not None and machine.joules is not None and machine.seconds > 0:
            trial = trial.model_copy(update={"watts": machine.joules / machine.seconds})
        if not self.trials or self.trials[-1].start != start:
            self._known.start()
        self.trials.append(trial)
        if trial.met is not None:
            self._known.add(Trial(trial.value, trial.met))

    @property
    def next_start(self) -> int:
        """Number of the next start of the engine's server."""
        return 1 + max((trial.start for trial in self.trials), default=-1)

    @property
    def has_trials(self) -> bool:
        """True if a cell says anything of the capacity."""
        return bool(self._known.trials)

    @property
    def guessed(self) -> bool:
        """True if all that is known is that the capacity is above some load, or below one."""
        return self._bound is None and len({trial.met for trial in self._known.trials}) == 1

    @property
    def next_value(self) -> float:
        """The load that is measured next."""
        return self._known.next_load()

    @property
    def ended(self) -> str:
        """Reason why no more is to be measured; empty while there is more."""
        plan = self.plan
        if self.has_trials and self._known.known_within(plan.tolerance):
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

    def capacity(self, engine: str, variant: str | None, otherwise: str) -> CapacityFound:
        """Return what is known now.

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
        """Return its capacity as a multiple of the other's, judged as one of so many pairs."""
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
        """Judge a cell by every limit; `met` is None where it does not count, as it is invalid.

        One that is invalid by failed requests alone counts: it was too heavy. One in which the queue grew did
        not meet them, as later requests would miss the limits.
        """
        failed = failed_share(summary)
        measured = {term.text: value_of(summary, term) for term in self._terms}
        held = all(holds(term, measured[term.text]) for term in self._terms)
        kinds = {reason.kind for reason in summary.invalid_reasons}
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


def searches_of(
    plan: SearchPlan, labels: Sequence[str], entries: Sequence[JournalEntry]
) -> dict[str, EngineSearch]:
    """Return the searches of these engines with all cells of the journal, by label."""
    searches = {label: EngineSearch(plan, label) for label in labels}
    for entry in entries:
        if entry.label in searches:
            searches[entry.label].take(entry.figures, entry.start or 0, entry.machine)
    return searches


def search_results(
    plan: SearchPlan,
    entries: Sequence[JournalEntry],
    summaries: Sequence[OnlineSummary],
    skipped: Sequence[Skipped],
    *,
    interrupted: bool,
) -> SearchResults:
    """Return what the cells of a search show, engines in the order of the summaries.

    Args:
        skipped: Cells and engines that could not be measured.
        interrupted: Whether the user ended the run early.
    """
    refs = {summary.label: (summary.engine, summary.variant) for summary in summaries}
    searches = searches_of(plan, list(refs), entries)
    ends = dict.fromkeys(refs, "it was interrupted" if interrupted else "the time was over")
    ends |= dict.fromkeys((fault.label for fault in skipped), "its server could not be measured any further")
    comparable = [search for search in searches.values() if search.has_trials and not search.guessed]
    pairs = list(combinations(comparable, 2))
    return SearchResults(
        plan=plan,
        engines=[search.capacity(*refs[label], ends[label]) for label, search in searches.items()],
        ratios=[a.against(b, len(pairs)) for a, b in pairs],
    )
