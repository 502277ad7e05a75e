"""The result in two sentences, with only those differences that hold for all comparisons together."""

from __future__ import annotations

from collections.abc import Sequence

from harness.metrics.percentiles import missing, supported
from harness.report.text.capacity import capacity_verdict
from harness.report.text.load_words import where
from harness.report.text.numbers import decimals, number, several
from harness.report.text.provenance import assumed
from harness.report.winners import compared_by, winner
from harness.runs.reader import OfflineRun, OnlineRun, Run
from harness.schema.load import ClosedLoop, Load, from_light_to_heavy, heaviest
from harness.schema.metrics import METRICS
from harness.schema.results import Comparison, OnlineSummary

#: So many requests in flight at most are no load; this share of what was offered is as good as all of it.
FEW, KEPT_UP = 2, 0.9
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


def keeping_up(run: OnlineRun) -> str:
    """How much of the shown load was answered, and how many requests were in flight."""
    load = shown_load(run)
    cells = [summary for summary in run.pooled if summary.load == load and summary.num_success]
    peaks = [summary.peak_in_flight for summary in cells if summary.peak_in_flight is not None]
    if not cells or not peaks:
        return ""
    few = ""
    if max(peaks) <= FEW:
        few = f"At most {max(peaks)} were in flight at once, which stresses no engine."
    if isinstance(load, ClosedLoop):
        return few
    offered = max(summary.offered_req_per_s for summary in cells)
    said = f"{number(offered, decimals([offered]))} requests/s were offered there"
    shares = {s.label: s.req_per_s / s.offered_req_per_s for s in cells if s.offered_req_per_s}
    behind = [f"{label} answered {share:.0%} of them" for label, share in shares.items() if share < KEPT_UP]
    if behind:
        said += f"; {several(behind)}"
    elif shares:
        said += f"; every engine answered at least {min(1.0, *shares.values()):.0%} of them"
    return f"{said}. {few}".strip().replace("%", " %")


def _online(run: OnlineRun) -> list[str]:
    if run.results.search is not None:
        return capacity_verdict(run.results.search)
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
    """The load in words, and whether it is the heaviest; of one closed loop that goes without saying."""
    measured = {summary.load for summary in run.pooled}
    is_heaviest = load == heaviest(measured) and (len(measured) > 1 or not isinstance(load, ClosedLoop))
    return f"{where(load).capitalize()}{', the heaviest load' if is_heaviest else ''}"


def _claim(engines: Sequence[OnlineSummary], comparisons: Sequence[Comparison], metric: str) -> str:
    """The best engine against the next that it really differs from: by a rate, or by the highest percentile
    of a latency that is supported."""
    found, short = winner(engines, comparisons, metric), METRICS[metric].label
    if found is None:
        return f"too few requests were measured to compare {short}."
    what = f"{short} {found.statistic}" if METRICS[metric].is_latency else short
    if found.loser is None or found.comparison is None:
        alike = several([found.label, *found.level])
        return f"no difference is shown in {what} between {alike}{_ratio(found.comparison)}."
    size, ends = factor(found.comparison)
    lower, other = found.label, found.loser
    if not METRICS[metric].lower_is_better:
        lower, other = other, lower
    claim = f"{lower}'s {what} is {size} lower than {other}'s"
    claim += f" (95 % interval {ends}{assumption(found.comparison)})"
    if found.level:
        return f"{claim}; from {several(found.level)} it shows no difference."
    return f"{claim}."


def _ratio(nearest: Comparison | None) -> str:
    """The nearest pair's ratio with its interval, in brackets."""
    if nearest is None or nearest.ci is None:
        return ""
    low, high = nearest.ci
    at_once = f", which does not hold for {nearest.comparisons} comparisons at once"
    ends = f"95 % interval {low:.2f} to {high:.2f}{'' if low <= 1 <= high else at_once}"
    return f" (ratio {nearest.a} / {nearest.b} {nearest.ratio:.2f}, {ends})"


def assumption(comparison: Comparison) -> str:
    """What the interval of a comparison rests on in addition to the samples."""
    return f", if repeats differ by {assumed}" if max(comparison.repeats) < 2 else ""


def factor(comparison: Comparison, *, higher: bool = False) -> tuple[str, str]:
    """How much lower the lower one is, and the interval: as a factor, or below 1.5 in per cent.

    Args:
        higher: Say how much higher the higher one is, which is always a factor.
    """
    ratio, (low, high) = comparison.ratio, comparison.ci or (comparison.ratio, comparison.ratio)
    if ratio < 1:
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
    if ratio >= _AS_FACTOR:
        return f"{ratio:.1f}×", f"{low:.1f}× to {high:.1f}×"
    if higher:
        return f"{ratio:.2f}×", f"{low:.2f}× to {high:.2f}×"
    return f"{_percent(ratio)} %", f"{_percent(low)} % to {_percent(high)} %"


def _percent(ratio: float) -> str:
    return f"{100 - 100 / ratio:.0f}"


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
    if len({summary.label for summary in run.pooled}) < 2 or run.results.search is not None:
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
