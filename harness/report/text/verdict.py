"""The result in a few sentences, with only those differences that hold for all comparisons together."""

from __future__ import annotations

from harness.metrics.percentiles import missing, supported
from harness.report.best import fell_behind, largest_difference
from harness.report.text.batches import batch_verdict
from harness.report.text.capacity import capacity_verdict
from harness.report.text.claims import (
    LARGEST,
    claim,
    first_time_in_full,
    in_order,
    lost_in_others,
    no_worse,
    on_disturbed,
    than,
    value_of,
)
from harness.report.text.invalid import invalid_cells
from harness.report.text.load_words import with_rate
from harness.report.text.numbers import decimals, few, number, several
from harness.report.text.tuning import tuning_verdict
from harness.report.text.unfinished import why_nothing
from harness.report.winners import lost_elsewhere, winners
from harness.runs.reader import OnlineRun, Run
from harness.schema.load import Load, from_light_to_heavy, heaviest
from harness.schema.metrics import METRICS
from harness.schema.online_summary import OnlineSummary
from harness.schema.results import Comparison


def verdict(run: Run) -> list[str]:
    """A sentence a metric on the load that `shown_load` gives, and of several loads the largest difference
    where that is another one."""
    return batch_verdict(run.results) if run.is_batch else _online(run)


def shown_load(run: OnlineRun) -> Load:
    """What the first screen is about: the heaviest load at which two engines are valid and no valid one fell
    behind, else at which two are valid, else one in the same order, else the heaviest."""
    valid = [summary.load for summary in run.pooled if summary.valid]
    by_weight = list(reversed(from_light_to_heavy(valid or [summary.load for summary in run.pooled])))
    behind = {summary.load for summary in run.pooled if summary.valid and fell_behind(summary)}
    return max(by_weight, key=lambda load: (valid.count(load) > 1, load not in behind))


def shown_percentile(run: OnlineRun, metric: str) -> int:
    """The percentile that the verdict speaks of at the shown load, else the highest that all engines have."""
    load = shown_load(run)
    engines = [summary for summary in run.pooled if summary.load == load]
    valid = [engine for engine in engines if engine.valid]
    if valid and (found := winners(valid, run.results.comparisons).get(metric)) is not None:
        return int(found.statistic[1:])
    sizes = [summary.latency(metric).n for summary in engines if summary.num_success]
    return supported((99, 90), sizes) or 50


def _online(run: OnlineRun) -> list[str]:
    if run.results.search is not None:
        return capacity_verdict(run.results.search)
    if run.results.tune is not None:
        return tuning_verdict(run.results.tune)
    if not run.has_results:
        return why_nothing(run.results.skipped)
    if not any(summary.valid for summary in run.pooled):
        return [invalid_cells(run), "Nothing is compared."]
    load = shown_load(run)
    engines = [summary for summary in run.pooled if summary.valid and summary.load == load]
    if len(engines) == 1:
        return _alone(run, engines[0])
    found = winners(engines, run.results.comparisons)
    largest = largest_difference(run.pooled, run.results.comparisons)
    metrics = sorted(found, key=lambda metric: METRICS[metric].is_latency)  # a rate before others
    ordered = [winner for metric in metrics if (winner := found[metric]) is not None]
    best = [winner.label for winner in ordered if winner.loser is not None]
    first, *others = (claim(engines, found[metric], METRICS[metric], largest, best) for metric in metrics)
    said = [
        f"{_where(run, load)}{on_disturbed(engines)}, {first}",
        *(f"At that load, {other}" for other in others),
    ]
    if best and (elsewhere := lost_elsewhere(best[0], engines, run.results.comparisons)):
        said.append(f"At that load, {lost_in_others(engines, elsewhere)}")
    one_load = len({summary.load for summary in run.pooled}) == 1
    if largest is not None and not one_load and not any(LARGEST in sentence for sentence in said):
        said.append(f"{LARGEST[:1].upper()}{LARGEST[1:]}: {_of_largest(run, largest)}.")
    return [first_time_in_full(said[:at], sentence) for at, sentence in enumerate(said)]


def _of_largest(run: OnlineRun, found: Comparison) -> str:
    """The largest difference, with the load at which it is shown."""
    engines = [summary for summary in run.pooled if summary.load == found.load]
    best, other = in_order(found)
    place = "at that load"
    if found.load != shown_load(run):
        place = with_rate(found.load, (engine.offered_req_per_s for engine in engines))
        place += on_disturbed(engine for engine in engines if engine.label in (best, other))
    said = f"{place}, {value_of(engines, best, found)}{than(engines, other, found)}"
    valid = [engine for engine in engines if engine.valid]
    return said + no_worse(valid, best, found, run.results.comparisons)


def _where(run: OnlineRun, load: Load) -> str:
    """The load in words, whether it is the heaviest of several, and who fell behind there or above it."""
    measured = {summary.load for summary in run.pooled}
    said = with_rate(load, (summary.offered_req_per_s for summary in run.pooled if summary.load == load))
    said = f"{said[:1].upper()}{said[1:]}"
    here, behind = [], set()
    for summary in run.pooled:
        if summary.valid and fell_behind(summary):
            here += [summary.label] * (summary.load == load)
            behind.add(summary.load)
    heavier = {other for other in measured if other.weight > load.weight}
    if here:
        its = "its latency grows" if len(here) == 1 else "their latency grows"
        return f"{said}, where {few(here)} fell behind and {its} with the length of the run"
    count = sum(summary.valid and summary.load == load for summary in run.pooled)
    why = ["two engines are valid" if count > 1 else "an engine is valid"] if heavier - behind else []
    why += ["no engine fell behind"] if heavier & behind else []
    if why:
        return f"{said}, the heaviest load at which {' and '.join(why)}"
    return f"{said}{', the heaviest load' if load == heaviest(measured) and len(measured) > 1 else ''}"


def _alone(run: OnlineRun, summary: OnlineSummary) -> list[str]:
    parts = []
    for metric in ("ttft_ms", "tpot_ms"):
        found = summary.latency(metric)
        known = [q for q in (50, 90, 99) if not missing(q, found.n)]
        values = [getattr(found, f"p{q}") for q in known]
        if known:
            texts = "/".join(number(value, decimals(values)) for value in values)
            named = "/".join(f"p{q}" for q in known)
            parts.append(f"a {METRICS[metric].label} of {texts} ms ({named})")
    measured = several(parts) if parts else "too few requests for percentiles"
    said = [f"{_where(run, summary.load)}, {summary.label} has {measured}."]
    if len({other.label for other in run.pooled}) > 1:
        said.append("No other engine has a valid result at the same load, so nothing is compared.")
        return [sentence for sentence in (invalid_cells(run), *said) if sentence]
    if growth := _growth(run):
        said.append(growth)
    faults = run.results.skipped
    skipped = list(dict.fromkeys(fault.label for fault in faults if fault.label != summary.label))
    absent = [] if run.meta.is_adaptive else list(dict.fromkeys(label for label, _ in run.meta.order))
    absent = [label for label in absent if label not in (summary.label, *skipped)]
    if skipped:
        why = f"{several(skipped)} {'was' if len(skipped) == 1 else 'were'} skipped"
    elif absent:
        why = (
            f"{several(absent)} {'was' if len(absent) == 1 else 'were'} not measured before the interruption"
        )
    else:
        why = f"{summary.label} is the only engine of this run"
    return [*said, f"{why}, so nothing is compared."]


def _growth(run: OnlineRun) -> str:
    """How the TTFT of the only engine grows from its lightest valid load to its heaviest."""
    valid = {summary.load: summary for summary in run.pooled if summary.valid}
    ordered = [valid[load] for load in from_light_to_heavy(valid)]
    ends = ordered[:1] + ordered[1:][-1:]
    q = supported((99, 90, 50), [end.ttft_ms.n for end in ends])
    if len(ends) < 2 or q is None:
        return ""
    values = [getattr(end.ttft_ms, f"p{q}") for end in ends]
    low, high = (number(value, decimals(values)) for value in values)
    light, heavy = (str(end.load) for end in ends)
    return f"From {light}, the lightest load, to {heavy} its TTFT p{q} goes from {low} to {high} ms."


def why_none_is_best(run: OnlineRun) -> str:
    """Why no engine is marked as the best; empty where there is one engine."""
    if len({summary.label for summary in run.pooled}) < 2 or run.meta.is_adaptive:
        return ""
    valid = [summary for summary in run.pooled if summary.valid]
    if not valid:
        return "Nothing here is compared: no cell is valid."
    loads = [summary.load for summary in valid]
    if all(loads.count(load) < 2 for load in loads):
        return "Nothing here is compared: at no load are two engines valid."
    verdicts = {comparison.verdict for comparison in run.results.comparisons if comparison.statistic == "p99"}
    if verdicts <= {"not enough data"}:
        return "Nothing here is marked best: the samples are too small for a verdict on these percentiles."
    return "Nothing here is marked best: no engine differs from every other one by more than chance."
