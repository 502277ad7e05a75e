"""Engines of a run side by side at one load, as a reader chooses them: the sentence, why, and the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from harness.errors import UsageError, did_you_mean
from harness.metrics.contrast import compared_by
from harness.metrics.rankings import Ranking, excludes_one, fell_behind, rankings, shown_load
from harness.profiling.artifacts import read_profiles
from harness.profiling.explain import explain
from harness.report.grouping import grouped
from harness.report.tables.comparisons import ratio_cell
from harness.report.tables.latency import SHOWN, grid, slo_met
from harness.report.tables.profiles import is_explained, largest_part
from harness.report.tables.table import Cell, Column, Table
from harness.report.text.load_words import load_number, with_rate
from harness.report.text.numbers import decimals, few, number, plural, several
from harness.report.wording import COMPARED_NOTE, WITHHELD_NOTE, Sentence, better_in, kept_up, sentence, wins
from harness.runs.reader import Run
from harness.schema.load import ClosedLoop, Load, from_light_to_heavy
from harness.schema.metrics import METRICS, latencies
from harness.schema.profile import Gap
from harness.schema.results import Comparison, OnlineSummary

#: Latencies of the table and the sentence. E2E follows from TTFT and TPOT, and has a section of its own.
COMPARED = (*latencies("headline"), "itl_ms")
#: Differences that are explained below a sentence.
MOST_REASONS = 2
_EXPLAINED = ("ttft_ms", "itl_ms")


@dataclass(frozen=True)
class Choice:
    """A load, and the engines that are compared at it, the baseline first."""

    load: Load
    labels: tuple[str, ...]


def is_chosen_of(run: Run) -> bool:
    """Tell whether a reader can choose: searches and tunings compare something else, a batch has one load."""
    return bool(run.pooled) and not (run.is_batch or run.meta.is_adaptive)


def first_choice(run: Run, load: Load | None = None, baseline: str | None = None) -> Choice:
    """Every engine that was measured at a load, by default the one of the verdict."""
    load = shown_load(run.pooled) if load is None else load
    labels = [each.label for each in run.pooled if each.load == load]
    return Choice(load, tuple(sorted(labels, key=lambda label: label != baseline)))


def choices(run: Run) -> list[Choice]:
    """Every load with each of its engines as the baseline of all others."""
    loads = from_light_to_heavy(summary.load for summary in run.pooled)
    return [first_choice(run, load, label) for load in loads for label in first_choice(run, load).labels]


def pairs(run: Run) -> Iterator[Choice]:
    """Every two engines at every load."""
    for load in from_light_to_heavy(summary.load for summary in run.pooled):
        for pair in combinations(first_choice(run, load).labels, 2):
            yield Choice(load, pair)


def chosen(run: Run, compare: str | None, load: str | None) -> Choice:
    """Choose by what a user typed: `vllm,sglang` compares vLLM with SGLang, `sglang` all others with it.

    Raises:
        UsageError: there is no such engine or load.
    """
    if not is_chosen_of(run):
        raise UsageError(f"nothing can be chosen of {run.path}", "name a run of bench online at given loads")
    loads = {load_number(each).replace(",", ""): each for each in sorted({s.load for s in run.pooled})}
    if load is not None and load not in loads:
        raise UsageError(f"there is no load {load} in {run.path}", f"it has {several(loads)}")
    place = first_choice(run, None if load is None else loads[load])
    if not compare:
        return place
    by_name = {name.casefold(): label for engine, label in reversed(run.engines) for name in (engine, label)}
    names = [name.strip().casefold() for name in compare.split(",")]
    for name in names:
        if by_name.get(name) not in place.labels:
            hint = did_you_mean(name, by_name) or f"it has {several(place.labels)}"
            raise UsageError(f"there is no engine {name} at that load in {run.path}", hint)
    other, *baseline = [by_name[name] for name in names]
    if not baseline:
        return first_choice(run, place.load, other)
    if len(baseline) > 1 or baseline == [other]:
        raise UsageError(
            f"--compare {compare} does not name two engines",
            f"such as --compare {','.join(place.labels[:2])}",
        )
    return Choice(place.load, (baseline[0], other))


# --- The sentence ---------------------------------------------------------------------------------------


def verdict(run: Run, choice: Choice) -> Sentence:
    """Say in what each of the engines is better, and in what no difference is shown."""
    at_load = [each for each in run.pooled if each.load == choice.load]
    place = with_rate(choice.load, (each.offered_req_per_s for each in at_load))
    place = place[:1].upper() + place[1:]
    compared = [each for each in at_load if each.label in choice.labels and each.valid]
    if len(compared) == 1:
        return sentence("alone", place=place, label=compared[0].label)
    if not compared:
        return sentence("none_valid", place=place, labels=few(choice.labels))
    if any(map(fell_behind, compared)):
        places = decimals(each.req_per_s for each in compared)
        return kept_up(
            place, [(each.label, number(each.req_per_s, places), fell_behind(each)) for each in compared]
        )
    return of_rankings(place, rankings(compared, _between(run, choice)), compared)


def of_rankings(place: str, found: Sequence[Ranking], compared: Sequence[OnlineSummary]) -> Sentence:
    """Choose the sentence by all rankings of a load."""
    counted = _in_sentences(found)
    load = compared[0].load
    if not any(ranking.headline for ranking in counted):
        names = several(METRICS[name].label for name in compared_by(load))
        return sentence("too_few_requests", place=place, metrics=names)
    better: dict[str, list[str]] = {}
    same: list[str] = []
    for metric, by_statistic in grouped(counted, lambda ranking: ranking.metric).items():
        undecided = [ranking.statistic for ranking in by_statistic if ranking.winner is None]
        if len(undecided) == len(by_statistic):
            same.append(METRICS[metric].label)
        won = grouped(by_statistic, lambda ranking: ranking.winner)
        for label, of_label in won.items():
            if label is not None:
                words = better_in(metric, [_won(each) for each in of_label], undecided)
                better.setdefault(label, []).append(words)
                undecided = []
    if not better:
        labels = few([each.label for each in compared])
        return sentence("no_difference", place=place, labels=labels, metrics=several(same))
    return wins(place, better, same)


def _in_sentences(found: Sequence[Ranking]) -> list[Ranking]:
    """Rankings that a sentence is about, latencies first."""
    counted = [ranking for ranking in found if ranking.metric != "e2e_ms"]
    return sorted(counted, key=lambda ranking: not METRICS[ranking.metric].is_latency)


def _won(ranking: Ranking) -> tuple[str, str, str]:
    """The statistic, by how much the winner is better than the one other engine, and than which of several if
    not than all."""
    others = ranking.valid[1:]
    worse = [row.label for row in others if row.significant]
    if len(others) == 1 and others[0].ratio:
        return ranking.statistic, f"by {max(others[0].ratio, 1 / others[0].ratio):.2f}×", ""
    return ranking.statistic, "", "" if len(worse) == len(others) else few(worse)


def by_themselves(run: Run, choice: Choice) -> list[Sentence]:
    """Say in what one of two engines is better by the interval of a comparison alone, not by the verdict."""
    compared = [each for each in run.pooled if each.load == choice.load and each.label in choice.labels]
    if len(compared) != 2 or any(map(fell_behind, compared)):
        return []
    between = _between(run, choice)
    better: dict[str, dict[str, list[tuple[str, str, str]]]] = {}
    for ranking in _in_sentences(rankings(compared, between)):
        if ranking.winner is not None or len(ranking.valid) < 2:
            continue
        best, other = ranking.valid
        if excludes_one(other.ratio_interval):
            of_best = better.setdefault(best.label, {})
            of_best.setdefault(ranking.metric, []).append(_won(ranking))
    if not better:
        return []
    phrases = [
        f"{label} is better in {several([better_in(metric, won, ()) for metric, won in by_metric.items()])}"
        for label, by_metric in better.items()
    ]
    count = plural(max(pair.comparisons for pair in between), "comparison")
    return [sentence("by_itself", comparisons=count, better="; ".join(phrases))]


def _between(run: Run, choice: Choice) -> list[Comparison]:
    return [
        pair
        for pair in run.results.comparisons
        if pair.load == choice.load and pair.a in choice.labels and pair.b in choice.labels
    ]


# --- Why ------------------------------------------------------------------------------------------------


def gaps_of(run: Run) -> Sequence[Gap]:
    """Differences taken apart: by the profiles of the run, else by what was reported of each request."""
    profiles = read_profiles(run.path)
    return profiles.gaps if profiles else explain(run.results, (), (), {})


def more(run: Run, choice: Choice, gaps: Sequence[Gap]) -> list[Sentence]:
    """List what stands below the verdict: differences that are none among all comparisons, and reasons."""
    return [*by_themselves(run, choice), *why(run, choice, gaps)]


def why(run: Run, choice: Choice, gaps: Sequence[Gap]) -> list[Sentence]:
    """Say what makes up most of the largest differences between the engines; nothing of queues."""
    at_load = {each.label: each for each in run.pooled if each.load == choice.load}
    if any(fell_behind(at_load[label]) for label in choice.labels):
        return []
    explained = [
        gap
        for gap in gaps
        if gap.load == choice.load and {gap.a, gap.b} <= set(choice.labels)
        and gap.metric in _EXPLAINED and is_explained(gap)
    ]  # fmt: skip
    explained.sort(key=lambda gap: -abs(gap.delta) / max(gap.value_a, gap.value_b))
    reasons = []
    for gap in explained[:MOST_REASONS]:
        part = largest_part(gap.parts)
        if part is not None:
            shorter, longer = (gap.a, gap.b) if gap.delta < 0 else (gap.b, gap.a)
            places = decimals([gap.delta])
            whole, of_part = (round(abs(delta), places) for delta in (gap.delta, part.delta))
            reasons.append(
                sentence(
                    "why_more" if of_part > whole else "why",
                    metric=METRICS[gap.metric].label, shorter=shorter, longer=longer, part=part.name,
                    ms=number(whole, places), part_ms=number(of_part, places),
                    rest_ms=number(of_part - whole, places),
                )
            )  # fmt: skip
    return reasons


# --- The table ------------------------------------------------------------------------------------------


def compared_table(run: Run, choice: Choice) -> Table:
    """A row an engine, the baseline first: percentiles and rates, below each its ratio to the baseline.

    Latencies have none where the engine or the baseline fell behind, and the load sets the rates otherwise,
    unless it is a closed loop.
    """
    at_load = {each.label: each for each in run.pooled if each.load == choice.load}
    engines = [at_load[label] for label in choice.labels]
    closed = isinstance(choice.load, ClosedLoop)
    heads = {
        (choice.load, metric, f"p{q}"): Column(f"p{q}", group=f"{METRICS[metric].label}, ms")
        for metric in COMPARED
        for q in SHOWN
    }
    if closed or any(map(fell_behind, engines)):
        output = Column("output", group="tok/s", kept=closed)
        heads[choice.load, "output_tok_per_s", "output_tok_per_s"] = output
    if not closed:
        offered = max(each.offered_req_per_s for each in engines)
        of = f"of {number(offered, decimals([offered]))}"
        heads[choice.load, "req_per_s", "req_per_s"] = Column(of, group="req/s")
    first, *columns = grid(engines, heads, {})
    compared = {
        (pair.metric, pair.statistic, *names): pair
        for pair in _between(run, choice)
        for names in ((pair.a, pair.b), (pair.b, pair.a))
    }
    rows, is_withheld = [first], False
    for (_, metric, statistic), column in zip(heads, columns, strict=True):
        cells = [*column.cells[:1]]
        for cell, engine in zip(column.cells[1:], engines[1:], strict=True):
            behind = [each for each in (engines[0], engine) if fell_behind(each)]
            is_known = engine.valid and engines[0].valid and cell.value is not None
            set_by_load = METRICS[metric].set_by_load and not closed and not behind
            if not is_known or set_by_load or (METRICS[metric].is_latency and behind):
                cells.append(cell)
                continue
            pair = compared.get((metric, statistic, engine.label, engines[0].label))
            ratio = ratio_cell(pair, engine.label)
            is_withheld |= pair is not None and pair.ci is None
            cells.append(cell if ratio.value is None else _with_ratio(cell, ratio))
        rows.append(replace(column, cells=cells))
    if any(each.slo_met is not None for each in engines):
        rows.append(Column("met", list(map(slo_met, engines)), "SLO"))
    place = with_rate(choice.load, (each.offered_req_per_s for each in engines))
    against = f", against {engines[0].label}" if len(engines) > 1 else ""
    count = max((pair.comparisons for pair in _between(run, choice)), default=0)
    notes = [COMPARED_NOTE.format(baseline=engines[0].label, count=count)] if count else []
    if is_withheld:
        notes.append(WITHHELD_NOTE)
    return Table("compared", f"{place[:1].upper()}{place[1:]}{against}", rows, notes, intervals="")


def _with_ratio(cell: Cell, ratio: Cell) -> Cell:
    return replace(
        cell,
        interval=ratio.interval,
        against=", ".join(filter(None, (ratio.text, ratio.against))),
        best=ratio.best,
        worse=ratio.worse,
        remark=ratio.remark or cell.remark,
    )
