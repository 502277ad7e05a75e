"""The result in two sentences, with only those differences that hold for all comparisons together."""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.metrics.percentiles import missing, supported
from harness.metrics.primary import compared_by
from harness.report.best import excludes_one
from harness.report.text.capacity import capacity_verdict
from harness.report.text.load_words import with_rate
from harness.report.text.numbers import decimals, few, number, several
from harness.report.text.tuning import tuning_verdict
from harness.report.winners import Winner, winner
from harness.runs.reader import OfflineRun, OnlineRun, Run
from harness.schema.load import Load, from_light_to_heavy, heaviest
from harness.schema.metric import Metric
from harness.schema.metrics import METRICS
from harness.schema.results import Comparison, OnlineSummary

#: From this factor on a ratio reads better than a percentage.
_AS_FACTOR = 1.5


def verdict(run: Run) -> list[str]:
    """Two sentences on the heaviest load at which two valid engines can be compared."""
    return _offline(run) if isinstance(run, OfflineRun) else _online(run)


def shown_load(run: OnlineRun) -> Load:
    """What the first screen is about: the heaviest load at which two engines are valid, else one, else the
    heaviest."""
    valid = [summary.load for summary in run.pooled if summary.valid]
    by_weight = list(reversed(from_light_to_heavy(valid or [summary.load for summary in run.pooled])))
    return next((load for load in by_weight if valid.count(load) > 1), by_weight[0])


def shown_percentile(run: OnlineRun, metric: str) -> int:
    """The percentile that the verdict speaks of at the shown load, else the highest that all engines have."""
    load = shown_load(run)
    engines = [summary for summary in run.pooled if summary.load == load]
    valid = [engine for engine in engines if engine.valid]
    if valid and (found := winner(valid, run.results.comparisons, metric)) is not None:
        return int(found.statistic[1:])
    sizes = [summary.latency(metric).n for summary in engines if summary.num_success]
    return supported((99, 90), sizes) or 50


def _online(run: OnlineRun) -> list[str]:
    if run.results.search is not None:
        return capacity_verdict(run.results.search)
    if run.results.tune is not None:
        return tuning_verdict(run.results.tune)
    if not any(summary.valid for summary in run.pooled):
        return ["No engine has a valid result.", "The warnings say why."]
    load = shown_load(run)
    engines = [summary for summary in run.pooled if summary.valid and summary.load == load]
    if len(engines) == 1:
        return _alone(run, engines[0])
    metrics = sorted(compared_by(load), key=lambda metric: METRICS[metric].is_latency)  # a rate before others
    first, *others = (_claim(engines, run.results.comparisons, metric) for metric in metrics)
    return [f"{_where(run, load)}, {first}", *(f"At that load, {other}" for other in others)]


def _where(run: OnlineRun, load: Load) -> str:
    """The load in words, and whether it is the heaviest of several."""
    measured = {summary.load for summary in run.pooled}
    is_heaviest = load == heaviest(measured) and len(measured) > 1
    said = with_rate(load, (summary.offered_req_per_s for summary in run.pooled if summary.load == load))
    return f"{said[:1].upper()}{said[1:]}{', the heaviest load' if is_heaviest else ''}"


def _claim(engines: Sequence[OnlineSummary], comparisons: Sequence[Comparison], metric: str) -> str:
    """The best engine against the next that it really differs from: by a rate, or by the highest percentile
    of a latency that is supported."""
    found, term = winner(engines, comparisons, metric), METRICS[metric]
    if found is None:
        return f"too few requests were measured to compare {term.label}."
    if found.loser is None or found.comparison is None:
        what = f"{term.label} {found.statistic}" if term.is_latency else term.label
        alike = few([found.label, *found.level])
        return f"no difference is shown in {what} between {alike}{_ratio(found.comparison)}."
    best, other = (
        next(engine for engine in engines if engine.label == label).value(metric, found.statistic)
        for label in (found.label, found.loser)
    )
    claim = _better(found, term, number(best, decimals([best])), number(other, decimals([other])))
    return f"{claim}{_no_difference(found)}.{_beaten(found, term)}"


def _no_difference(found: Winner) -> str:
    """From which engines, and in which higher percentiles, none is shown."""
    said = f"; the difference from {few(found.alike)} may be chance" if found.alike else ""
    for comparison in found.unproven:
        other = comparison.b if comparison.a == found.label else comparison.a
        ratio = _with_interval(comparison)
        said += f"; the difference from {other} is {not_significant(comparison)} ({ratio})"
    if not found.undecided:
        return said
    return f"{said}. In {several(reversed(found.undecided))} no engine is shown to be the best"


def _beaten(found: Winner, term: Metric) -> str:
    """In which lower percentiles another engine is better."""
    return "".join(
        f" In {term.label} {at}, {label} is better than {found.label}." for at, label in found.beaten
    )


def _better(found: Winner, term: Metric, best: str, other: str) -> str:
    """The winner's value and the loser's, how far apart they are, and the interval of that."""
    assert found.comparison is not None
    if not term.lower_is_better:
        times, ends = factor(found.comparison, higher=True)
        return (
            f"{found.label} reaches {best} {term.label}, {times} the {other} of {found.loser} "
            f"(95 % interval {ends})"
        )
    size, ends = factor(found.comparison)
    return (
        f"{found.label} has a {term.label} {found.statistic} of {best} {term.unit}, {size} lower than "
        f"{found.loser} with {other} {term.unit} (95 % interval {ends})"
    )


def _ratio(nearest: Comparison | None) -> str:
    """The nearest pair's ratio with its interval, in brackets."""
    if nearest is None or nearest.ci is None:
        return ""
    unproven = f"; {not_significant(nearest)}" if excludes_one(nearest.ci) else ""
    return f" ({_with_interval(nearest)}{unproven})"


def _with_interval(comparison: Comparison) -> str:
    """`ratio a / b 0.90, 95 % interval 0.85 to 0.98`; it has one."""
    low, high = comparison.ci or (math.nan, math.nan)
    ratio = f"ratio {comparison.a} / {comparison.b} {comparison.ratio:.2f}"
    return f"{ratio}, 95 % interval {low:.2f} to {high:.2f}"


def not_significant(comparison: Comparison) -> str:
    """Of a difference whose interval excludes none by itself."""
    return f"not significant after correction for {comparison.comparisons} comparisons"


def factor(comparison: Comparison, *, higher: bool = False) -> tuple[str, str]:
    """How much lower the lower one is, and the interval: as a factor, or below 1.5 in per cent.

    Args:
        higher: Say how much higher the higher one is, which is always a factor.
    """
    ratio, (low, high) = comparison.ratio, comparison.ci or (comparison.ratio, comparison.ratio)
    if ratio < 1:
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
    if ratio < _AS_FACTOR and not higher:
        size, *ends = _apart(100 - 100 / ratio, 100 - 100 / low, 100 - 100 / high, places=0)
        return f"{size} %", f"{ends[0]} % to {ends[1]} %"
    size, *ends = _apart(ratio, low, high, places=1 if ratio >= _AS_FACTOR else 2)
    return f"{size}×", f"{ends[0]}× to {ends[1]}×"


def _apart(*values: float, places: int) -> list[str]:
    """A value and the two ends of its interval, with up to two decimals more where the ends read alike."""
    texts = [[f"{value:.{places + more}f}" for value in values] for more in range(3)]
    return next((found for found in texts if found[1] != found[2]), texts[0])


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
        return [*said, "No other engine has a valid result at the same load, so nothing is compared."]
    if growth := _growth(run):
        said.append(growth)
    faults = run.results.skipped
    skipped = list(dict.fromkeys(fault.label for fault in faults if fault.label != summary.label))
    why = (
        f"{several(skipped)} {'was' if len(skipped) == 1 else 'were'} skipped"
        if skipped
        else f"{summary.label} is the only engine of this run"
    )
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


def _offline(run: OfflineRun) -> list[str]:
    rates: dict[str, list[float]] = {}
    for result in run.results.results:
        rates.setdefault(result.label, []).append(result.output_tok_per_s)
    if not rates:
        return ["No engine has a result.", "The warnings say why."]
    means = {label: sum(values) / len(values) for label, values in rates.items()}
    engine = {result.label: result.engine for result in run.results.results}
    first, *rest = sorted(means, key=lambda label: -means[label])
    said = f"{first} generates {means[first]:,.0f} tokens a second, the most of {len(means)}."
    if not rest:
        return [
            f"{first} generates {means[first]:,.0f} tokens a second.",
            "There is no second engine to compare with.",
        ]
    second = next((label for label in rest if engine[label] != engine[first]), rest[0])
    ratio = f"{means[first] / means[second]:.2f}× {second}'s"
    few = min(len(rates[first]), len(rates[second])) < 2
    if few:
        return [said, f"That is {ratio} in one repeat, too few to say whether the difference is real."]
    share = "all" if min(rates[first]) > max(rates[second]) else "not all"
    return [said, f"That is {ratio}; {share} repeats of the one are above all of the other."]


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
