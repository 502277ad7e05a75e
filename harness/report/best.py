"""Who is best, where that is more than chance."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from harness.schema.load import ClosedLoop, Load
from harness.schema.metrics import METRICS
from harness.schema.online_summary import OnlineSummary
from harness.schema.results import Comparison

#: An interval whose ends differ by more than this factor says nothing of a value.
WIDEST = 10
#: Rates that the load of an open loop sets, until an engine falls behind.
_SET_BY_LOAD = ("req_per_s", "output_tok_per_s", "total_tok_per_s")
#: The labels that are really best, by (load, metric, statistic); several where they do not differ.
BestLabels = dict[tuple[Load, str, str], frozenset[str]]


def best_labels(pooled: Sequence[OnlineSummary], comparisons: Sequence[Comparison]) -> BestLabels:
    """The labels whose verdict against every other valid engine at that load is a difference to their good,
    but against each other, of which none is a difference.

    An invalid cell neither wins nor is beaten. By a rate that the load sets, none is the best.
    """
    valid = valid_labels(pooled)
    behind = {summary.load for summary in pooled if fell_behind(summary)}
    won: defaultdict[tuple[Load, str, str], set[tuple[str, str]]] = defaultdict(set)
    for comparison in comparisons:
        given = not isinstance(comparison.load, ClosedLoop) and comparison.load not in behind
        if given and comparison.metric in _SET_BY_LOAD:
            continue
        pair = {comparison.a, comparison.b}
        if pair <= valid[comparison.load] and differs(comparison):
            first = better(comparison)
            [second] = pair - {first}
            won[comparison.load, comparison.metric, comparison.statistic].add((first, second))
    found = {key: _unbeaten(valid[key[0]], pairs) for key, pairs in won.items()}
    return {key: labels for key, labels in found.items() if labels}


def _unbeaten(labels: set[str], won: set[tuple[str, str]]) -> frozenset[str]:
    """Those that none is better than, where each of them is better than all others; `won`: pairs of a better
    and a worse one."""
    beaten = {worse for _, worse in won}
    first = frozenset(labels - beaten)
    return first if all((a, b) in won for a in first for b in labels - first) else frozenset()


def valid_labels(pooled: Sequence[OnlineSummary]) -> defaultdict[Load, set[str]]:
    """The labels whose cell at a load is valid, by the load."""
    valid: defaultdict[Load, set[str]] = defaultdict(set)
    for summary in pooled:
        if summary.valid:
            valid[summary.load].add(summary.label)
    return valid


def differs(comparison: Comparison) -> bool:
    """Whether the verdict, which holds for all comparisons of the run together, is a difference."""
    return comparison.verdict in ("better", "worse")


def excludes_one(ratio_ci: tuple[float, float] | None) -> bool:
    """Whether a ratio's own 95 % interval does, whatever the verdict."""
    return ratio_ci is not None and not ratio_ci[0] <= 1 <= ratio_ci[1]


def fell_behind(summary: OnlineSummary) -> bool:
    """Whether the latencies of an open loop grew with its length."""
    return any(notice.kind == "behind" for notice in summary.notices)


def was_disturbed(measured: OnlineSummary) -> bool:
    """Whether something else used the machine meanwhile, or slowed it down."""
    return any(notice.kind == "disturbed" for notice in measured.notices)


def disturbed_labels(measured: Iterable[OnlineSummary]) -> list[str]:
    """Of what was measured while the machine was disturbed, each once."""
    return list(dict.fromkeys(each.label for each in measured if was_disturbed(each)))


def largest_difference(
    pooled: Sequence[OnlineSummary], comparisons: Sequence[Comparison]
) -> Comparison | None:
    """Of valid engines, by whatever metric, at any load, the first of equal ones; None where none is real, or
    an engine fell behind, whose latencies have any size."""
    valid = valid_labels(pooled)
    if any(summary.valid and fell_behind(summary) for summary in pooled):
        return None
    found = [pair for pair in comparisons if {pair.a, pair.b} <= valid[pair.load] and differs(pair)]
    return max(found, key=lambda pair: abs(math.log(pair.ratio)), default=None)


def says_nothing(ratio_ci: tuple[float, float]) -> bool:
    """Whether the interval of a ratio leaves open which is larger, and by what order of magnitude."""
    low, high = ratio_ci
    return low < 1 < high and high > WIDEST * low


def better(comparison: Comparison) -> str:
    """The label with the better value, whether or not the difference is real."""
    lower = comparison.a if comparison.ratio < 1 else comparison.b
    higher = comparison.b if lower == comparison.a else comparison.a
    return lower if METRICS[comparison.metric].lower_is_better else higher
