"""What a run says about each of its loads: which engine is best. A report carries it for the index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import TypeAdapter

from harness.metrics.primary import RATE
from harness.report.best import differs, excludes_one
from harness.report.text.batches import BestOfBatch, best_of_batch, ratio_of, ways_asked
from harness.report.text.capacity import capacity_verdict
from harness.report.text.caveats import caveats, uncommitted
from harness.report.text.claims import also, factor, level_values, too_few
from harness.report.text.heading import machine, model, versions
from harness.report.text.limits import limit_words
from harness.report.text.load_words import with_rate
from harness.report.text.numbers import decimals, few, number, plural, several, two_digits
from harness.report.winners import PERCENTILES, Winner, lost_elsewhere, pairs_of, ranked, supported, winners
from harness.runs.reader import OnlineRun, Run
from harness.schema.load import ClosedLoop, Load, from_light_to_heavy
from harness.schema.metrics import METRICS
from harness.schema.online_summary import OnlineSummary
from harness.schema.results import Comparison
from harness.schema.search import SearchResults
from harness.schema.setting_types import lengths_text

#: The metric of a search's answer, which `detail` says in sentences.
CAPACITY = "capacity"
#: Of prompts and answers.
LONG, SHORT = "{} tokens in, {} out", "{}/{} tokens"


class Compared(NamedTuple):
    """An engine beside the best one: how many times as much it has, and whether they differ by more than
    chance."""

    engine: str
    ratio: str
    differs: bool


@dataclass(frozen=True)
class Standing:
    """The engine with the best value of a statistic, which is empty for a rate, the value with its unit, and
    the others, the best first."""

    statistic: str
    engine: str
    value: str
    others: tuple[Compared, ...]


@dataclass(frozen=True)
class Answer:
    """The best engine by one metric; `engine` is empty where no difference is shown, or none is compared.

    `compared` says whether there were two engines with enough requests, `elsewhere` in which percentiles
    other than that of `detail` another engine is better, `latencies` in which ITL and E2E. `standings` are
    those of all percentiles that can be compared, whichever `detail` is of.
    """

    metric: str
    engine: str
    detail: str
    compared: bool = True
    elsewhere: str = ""
    latencies: str = ""
    standings: tuple[Standing, ...] = ()


@dataclass(frozen=True)
class Finding:
    """What a run says about one load, which `at` says in short, with all its `engines`; a search about all
    loads within its limits.

    `judged` says whether the engines are valid, or why those in `invalid` are not compared; `caveats` that an
    engine fell behind, that answers were not checked, that the machine was disturbed, that a GPU lowered its
    clocks, that code was not committed. `repeats` are those that every engine has, of a search its starts;
    `seconds` is how long the shortest cell was measured, `made` the day. `versions` has label and version of
    engines, as far as they are known.
    """

    model: str
    machine: str
    load: str
    at: str
    engines: tuple[str, ...]
    answers: tuple[Answer, ...]
    judged: str
    caveats: tuple[str, ...]
    repeats: int
    seconds: float
    made: str
    invalid: tuple[str, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()

    @property
    def validity(self) -> str:
        """All that is said of how far the load can be believed."""
        return "; ".join([self.judged, *self.caveats])

    @property
    def carried(self) -> str:
        """What a search found; empty of another run."""
        return next((answer.detail for answer in self.answers if answer.metric == CAPACITY), "")

    @property
    def measured(self) -> str:
        """How often and for how long."""
        seconds = f"{self.seconds:.3g} s"
        if self.carried:
            return f"{plural(self.repeats, 'start')}, cells of {seconds}"
        return f"{plural(self.repeats, 'repeat')} of {seconds}"


FINDINGS = TypeAdapter(list[Finding])


def findings(run: Run) -> list[Finding]:
    """One for each load of a run, from light to heavy; one of a search; none of a tuning, which compares
    settings."""
    if run.is_batch:
        return _offline(run)
    if (search := run.results.search) is not None:
        return [_searched(run, search)] if run.repeats else []
    if run.meta.is_adaptive:
        return []
    return [_finding(run, load) for load in from_light_to_heavy(summary.load for summary in run.pooled)]


def _finding(run: OnlineRun, load: Load) -> Finding:
    cells = [summary for summary in run.pooled if summary.load == load]
    valid = [summary for summary in cells if summary.valid]
    found = winners(valid, run.results.comparisons) if valid else {}
    answers = tuple(_answer(valid, metric, best, run.results.comparisons) for metric, best in found.items())
    invalid = [f"{cell.label}: {'; '.join(cell.invalid_reasons)}" for cell in cells if not cell.valid]
    return Finding(
        model(run.meta),
        machine(run.meta),
        _load(run, load, cells),
        _at(run, load, cells),
        tuple(cell.label for cell in cells),
        answers,
        f"invalid: {'. '.join(invalid)}" if invalid else f"{plural(len(cells), 'engine')}, valid",
        tuple(caveats(run, cells, valid)),
        min(Counter(cell.label for cell in run.repeats if cell.load == load).values()),
        _shown_seconds(min(summary.duration_s for summary in run.repeats if summary.load == load)),
        run.meta.created[:10],
        tuple(cell.label for cell in cells if not cell.valid),
        tuple(versions(run.meta).items()),
    )


def _searched(run: OnlineRun, search: SearchResults) -> Finding:
    """Of the engines that have cells. That one falls behind in a cell misses the limits, and is no caveat."""
    engines = [found for found in search.engines if found.trials]
    cells, invalid = sum(len(found.trials) for found in engines), sum(found.invalid for found in engines)
    valid = f"{invalid} of {cells} cells invalid" if invalid else "valid"
    limits = limit_words(search.plan.limits)
    trace = None if search.plan.by == "concurrency" else run.meta.trace
    long, short = (trace.name if trace else _sent(run, lengths) for lengths in (LONG, SHORT))
    said = " ".join(capacity_verdict(search)).removeprefix(f"Within {limits}, ")
    return Finding(
        model(run.meta),
        machine(run.meta),
        f"most {search.plan.unit} within {limits}, {long}",
        f"within {limits}, {short}",
        tuple(found.label for found in engines),
        (Answer(CAPACITY, "", said, compared=len(engines) > 1),),
        f"{plural(len(engines), 'engine')}, {valid}",
        tuple(caveats(run, run.pooled)),
        min(found.starts for found in engines),
        _shown_seconds(min(summary.duration_s for summary in run.repeats)),
        run.meta.created[:10],
        versions=tuple(versions(run.meta).items()),
    )


def _shown_seconds(seconds: float) -> float:
    """With one decimal, or two digits of less than a second."""
    return round(seconds, max(1, two_digits(seconds)))


def _answer(
    engines: Sequence[OnlineSummary], metric: str, found: Winner | None, comparisons: Sequence[Comparison]
) -> Answer:
    label = METRICS[metric].label
    if found is None:
        return Answer(label, "", "too few requests", compared=False)
    statistic = "" if found.statistic == metric else found.statistic
    shown = f"{statistic} {_value(engines, found.label, metric, found.statistic)}".lstrip()
    if found.comparison is None:
        return Answer(label, "", f"{found.label} alone: {shown}", compared=False)
    elsewhere, standings = _elsewhere(found), _standings(engines, comparisons, metric)
    latencies = _in_other_latencies(engines, found, comparisons) if metric == "tpot_ms" else ""
    if found.loser is None:
        values = level_values(engines, found)
        alike = several(values) if values else f"between {few([found.label, *found.level])}"
        shown = f" in {statistic}" if statistic else ""
        unproven = _unproven([found.comparison] if excludes_one(found.comparison.ci) else [])
        said = f"no difference shown{shown}{': ' if values else ' '}{alike}"
        engine, detail = "", f"{said}{unproven}{_in_higher(found)}"
    else:
        engine, detail = found.label, f"{shown}, {_against(found)}"
    return Answer(
        label,
        engine,
        detail,
        elsewhere=elsewhere,
        latencies=latencies,
        standings=standings,
    )


def _unproven(comparisons: Sequence[Comparison]) -> str:
    """Differences whose own interval excludes a ratio of 1, but that are not significant: `B has 14× as much
    as A (11× to 17×), but 3 repeats are too few …`."""
    said = ""
    for found in comparisons:
        lower, higher = (found.a, found.b) if found.ratio < 1 else (found.b, found.a)
        size, ends = factor(found)
        said += f"; {higher} has {size} as much as {lower} ({ends}), but {too_few(found)}"
    return said


def _standings(
    engines: Sequence[OnlineSummary], comparisons: Sequence[Comparison], metric: str
) -> tuple[Standing, ...]:
    """Of each percentile, or of a rate, that all engines have enough requests for."""
    statistics = [metric] if metric == RATE else list(reversed(PERCENTILES))
    return tuple(
        _standing(engines, comparisons, metric, statistic)
        for statistic in statistics
        if supported(engines, comparisons, metric, statistic)
    )


def _standing(
    engines: Sequence[OnlineSummary], comparisons: Sequence[Comparison], metric: str, statistic: str
) -> Standing:
    best, *others = ranked(engines, metric, statistic)
    pairs = pairs_of(engines, comparisons, metric, statistic)
    found = [(other, pair) for other in others if (pair := pairs.get(frozenset((best, other)))) is not None]
    return Standing(
        "" if statistic == metric else statistic,
        best,
        _value(engines, best, metric, statistic),
        tuple(
            Compared(other, _times(pair.ratio if pair.a == other else 1 / pair.ratio), differs(pair))
            for other, pair in found
        ),
    )


def _value(engines: Sequence[OnlineSummary], label: str, metric: str, statistic: str) -> str:
    """That of one of the engines, with its unit."""
    value = next(engine for engine in engines if engine.label == label).value(metric, statistic)
    return f"{number(value, decimals([value]))} {METRICS[metric].unit}"


def _times(ratio: float) -> str:
    """With three decimals near 1, else with three digits or fewer."""
    return f"{number(ratio, 3 if abs(ratio - 1) < 0.02 else min(2, decimals([ratio])))}×"


def _against(found: Winner) -> str:
    """How much better than the first engine that it differs from."""
    assert found.comparison is not None
    size, ends = factor(found.comparison)
    said = f"{size} as much as {found.loser} ({ends})"
    if METRICS[found.metric].lower_is_better:
        said = f"{found.loser} has {size} as much ({ends})"
    if found.alike:
        said += f"; no difference shown from {few(found.alike)}"
    return f"{said}{_unproven(found.unproven)}{_in_higher(found)}"


def _in_higher(found: Winner) -> str:
    """What higher percentiles show of the same engine."""
    said = "".join(f"; better{than} in {several(names)} too" for names, than in also(found))
    if found.undecided:
        said += f"; no difference shown in {several(reversed(found.undecided))}"
    return said


def _elsewhere(found: Winner) -> str:
    """In which other percentiles other engines are better."""
    said = ""
    for at, labels, other, _ in found.others:
        than = "" if found.loser is not None and other == found.label else f" than {other}"
        said += f"; in {at} {several(labels)} {'is' if len(labels) == 1 else 'are'} better{than}"
    return said


def _in_other_latencies(
    engines: Sequence[OnlineSummary], found: Winner, comparisons: Sequence[Comparison]
) -> str:
    """Percentiles of ITL and E2E, which have no column, in which other engines are better than the best."""
    by: dict[tuple[str, ...], list[str]] = {}
    for lost in lost_elsewhere(found.label, engines, comparisons):
        name = f"{METRICS[lost.comparison.metric].label} {lost.statistic}"
        by.setdefault(lost.better, []).append(name)
    return "".join(
        f"; in {several(names)} {several(labels)} {'is' if len(labels) == 1 else 'are'} better "
        f"than {found.label}"
        for labels, names in by.items()
    )


def _load(run: OnlineRun, load: Load, cells: Sequence[OnlineSummary]) -> str:
    """The load, what was sent, and how many requests a second were offered."""
    trace = run.meta.trace
    if isinstance(load, ClosedLoop):
        return f"{load}, {_sent(run, LONG)}"
    said = with_rate(load, (cell.offered_req_per_s for cell in cells))
    return f"{trace.name if trace else 'requests'} {said}"


def _at(run: OnlineRun, load: Load, cells: Sequence[OnlineSummary]) -> str:
    if isinstance(load, ClosedLoop):
        return f"{load}, {_sent(run, SHORT)}"
    return with_rate(load, (cell.offered_req_per_s for cell in cells)).removeprefix("at ")


def _sent(run: OnlineRun, lengths: str) -> str:
    """What a closed loop sends: the dataset, or prompts and answers of lengths, in that form."""
    asked = run.meta.settings
    return asked.dataset or lengths.format(lengths_text(asked.input_len), lengths_text(asked.output_len))


def _offline(run: Run) -> list[Finding]:
    """Of a batch: which engine has the most output tokens a second."""
    best = best_of_batch(run.results)
    if best is None:
        return []
    results = run.results.results
    ways = ways_asked(results)
    return [
        Finding(
            model(run.meta),
            machine(run.meta),
            f"a batch without arrivals{f': {ways}' if ways else ''}",
            "a batch",
            tuple(best.means),
            (_of_batch(best),),
            f"{plural(len(best.means), 'engine')}, validity not judged",
            tuple(uncommitted(run)),
            min(Counter(result.label for result in results).values()),
            _shown_seconds(min(result.total_s * result.batches for result in results)),
            run.meta.created[:10],
            versions=tuple(versions(run.meta).items()),
        )
    ]


def _of_batch(best: BestOfBatch) -> Answer:
    label, unit = METRICS[RATE].label, METRICS[RATE].unit
    if not best.pairs:
        return Answer(label, "", f"{best.label} alone: {best.value} {unit}", compared=False)
    others = [
        Compared(other, _times(ratio_of(pair, other)[0]), other not in best.level)
        for other, pair in best.pairs.items()
    ]
    standing = Standing("", best.label, f"{best.value} {unit}", tuple(others))
    if best.loser is None:
        return Answer(label, "", f"no difference shown: {best.no_difference()}", standings=(standing,))
    than = f"{best.times(best.loser)} as much as {best.loser}{best.interval(best.loser)}"
    said = [f"{best.value} {unit}, {than.replace('95 % interval ', '')}", *best.unproven()]
    return Answer(label, best.label, "; ".join(said), standings=(standing,))
