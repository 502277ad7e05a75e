"""Findings that a report carries for the index: one a load, with its rankings. Notices are another thing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import Field, TypeAdapter

from harness.engines.registry import ENGINES
from harness.metrics.rankings import Ranking
from harness.report.answer import answer, rankings_of
from harness.report.notices import facts_of
from harness.report.text.heading import lengths, machine, model, versions, ways_asked
from harness.report.text.load_words import with_rate
from harness.report.text.numbers import plural, two_digits
from harness.report.wording import WORDING, limit_words
from harness.runs.reader import Run
from harness.schema.base import Strict
from harness.schema.facts import Fact
from harness.schema.load import Batch, ClosedLoop, Load, from_light_to_heavy

#: Of prompts and answers.
LONG, SHORT = "{} tokens in, {} out", "{}/{} tokens"


class Finding(Strict):
    """The result of a run at one load, or of a search within its limits."""

    model: str
    machine: str
    load: str = Field(description="the load in full")
    at: str = Field(description="the load in short")
    engines: list[str] = Field(description="their labels")
    families: dict[str, str] = Field(default_factory=dict, description="the engine of a variant, by label")
    rankings: list[Ranking]
    carried: str = Field("", description="the answer of a search; empty of another run")
    invalid: list[str] = Field(default_factory=list, description="labels of engines with invalid cells")
    caveats: list[str] = Field(default_factory=list, description="badges of what is grave")
    repeats: int = Field(description="that every engine has; of a search its starts")
    seconds: float = Field(description="for which the shortest cell was measured")
    made: str = Field(description="the day")
    versions: dict[str, str] = Field(default_factory=dict, description="of engines, by label")

    def family(self, label: str) -> str:
        """Return the engine of a label, without its variant: a column of the index."""
        return self.families.get(label, label)

    @property
    def measured(self) -> str:
        """Number of repeats and their length."""
        noun = "start" if self.carried else "repeat"
        return f"{plural(self.repeats, noun)} of {self.seconds:.3g} s"


FINDINGS = TypeAdapter(list[Finding])


def findings(run: Run) -> list[Finding]:
    """One finding a load, from light to heavy; one of a search; none of a tuning, which compares settings."""
    if not run.has_results or not run.pooled or run.meta.tune is not None:
        return []
    if run.results.search is not None:
        return [_of_search(run)]
    loads = from_light_to_heavy(summary.load for summary in run.pooled)
    facts = facts_of(run)
    return [_at_load(run, load, facts) for load in loads]


def _at_load(run: Run, load: Load, facts: Sequence[Fact]) -> Finding:
    cells = [summary for summary in run.pooled if summary.load == load]
    repeats = [cell for cell in run.repeats if cell.load == load]
    rates = [cell.offered_req_per_s for cell in cells]
    trace = run.meta.trace
    full = f"{trace.name if trace else 'requests'} {with_rate(load, rates)}"
    short = with_rate(load, rates)
    if isinstance(load, ClosedLoop):
        full, short = (f"{load}, {lengths(run, template)}" for template in (LONG, SHORT))
    elif isinstance(load, Batch):
        ways = ways_asked(run.meta.launches)
        full, short = f"a batch without arrivals{f': {ways}' if ways else ''}", "a batch"
    return _finding(
        run,
        load=full,
        at=short,
        engines=[cell.label for cell in cells],
        rankings=[ranking for ranking in rankings_of(run) if ranking.load == load],
        invalid=[cell.label for cell in cells if not cell.valid],
        caveats=_caveats(fact for fact in facts if fact.scope.load in (None, load)),
        repeats=min(Counter(cell.label for cell in repeats).values()),
        seconds=_rounded(min(cell.duration_s for cell in repeats)),
    )


def _of_search(run: Run) -> Finding:
    search = run.results.search
    assert search is not None
    engines = [engine for engine in search.engines if engine.trials]
    within = f"within {limit_words(search.plan.limits)}"
    trace = None if search.plan.closed else run.meta.trace
    long, short = (trace.name if trace else lengths(run, template) for template in (LONG, SHORT))
    return _finding(
        run,
        load=f"most {search.plan.unit} {within}, {long}",
        at=f"{within}, {short}",
        engines=[engine.label for engine in engines],
        rankings=rankings_of(run),
        carried=" ".join(map(str, answer(run))),
        caveats=_caveats(fact for fact in facts_of(run) if fact.scope.load is None),
        repeats=min(engine.starts for engine in engines),
        seconds=_rounded(min(cell.duration_s for cell in run.repeats)),
    )


def _finding(run: Run, **fields: Any) -> Finding:
    """Make a finding of `fields` and what the run is."""
    meta = run.meta
    made, named = meta.created[:10], versions(meta)
    variants = [launch for launch in meta.launches if launch.variant is not None and launch.engine in ENGINES]
    families = {launch.label: ENGINES[launch.engine].display for launch in variants}
    what = {"model": model(meta), "machine": machine(meta), "made": made, "versions": named}
    return Finding(**what, families=families, **fields)


def _caveats(facts: Iterable[Fact]) -> list[str]:
    """Badges of the facts that keep figures from being believed at sight, each once."""
    rows = [WORDING[fact.kind] for fact in facts]
    return list(dict.fromkeys(row.badge for row in rows if row.severity != "note" and row.topic != "cells"))


def _rounded(seconds: float) -> float:
    """Seconds with one decimal, or two digits of less than a second."""
    return round(seconds, max(1, two_digits(seconds)))
