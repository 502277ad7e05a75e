"""What the right and wrong items of a task say: a score with its interval, and which engines differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from harness.fairness.task import EACH, FAMILIES, Item
from harness.metrics.holm import holm
from harness.metrics.intervals import LEVEL, wilson
from harness.schema.fairness import TaskReply, TaskScore, TaskScores

RULE = (
    f"{EACH * len(FAMILIES)} generated items ({', '.join(FAMILIES)}), asked once of each engine on the timed "
    "server with its timed settings, greedily; an item is right if the first line of the answer is the "
    "expected one. Intervals are Wilson's, 95 %. All engines get the same items, so two of them are compared "
    "by the items that only one has right (McNemar's exact test), and all pairs are corrected together "
    "(Holm). An engine that is worse than another at 5 %, and by 5 points or more, is invalid: fast and "
    "wrong is not fast. Less than that, half precision alone can do: then there is a notice."
)
#: The least difference of two shares for which an engine is invalid.
MARGIN = 0.05


def mcnemar(a: Sequence[bool], b: Sequence[bool]) -> float:
    """The exact p-value of two engines being right equally often (McNemar, Psychometrika 12, 1947)."""
    only_a = sum(x and not y for x, y in zip(a, b, strict=True))
    only_b = sum(y and not x for x, y in zip(a, b, strict=True))
    if only_a + only_b == 0:
        return 1.0
    from scipy.stats import binomtest  # a second to import

    return float(binomtest(only_a, only_a + only_b, 0.5).pvalue)


def judge_task(items: Sequence[Item], given: Mapping[str, TaskReply]) -> TaskScores:
    """Score every engine, by label, and hold each against the others."""
    pairs = list(combinations(given, 2))
    adjusted = holm([mcnemar(given[a].right, given[b].right) for a, b in pairs])
    worse: dict[str, str] = {}
    lower: dict[str, str] = {}
    for (a, b), p in zip(pairs, adjusted, strict=True):
        if p is None or p > LEVEL:
            continue
        low, high = sorted((a, b), key=lambda label: sum(given[label].right))
        fewer = sum(given[high].right) - sum(given[low].right)
        of = worse if fewer >= MARGIN * len(items) else lower
        of.setdefault(low, f"{_count(given[low])}, {high} {_count(given[high])} (p = {p:.2g})")
    scores = []
    for label, reply in given.items():
        right, n = sum(reply.right), len(reply.right)
        by_family = {
            family: sum(ok for ok, item in zip(reply.right, items, strict=True) if item.family == family)
            for family in FAMILIES
        }
        scores.append(
            TaskScore(
                label=label,
                right=right,
                items=n,
                ci=wilson(right, n),
                by_family=by_family,
                failed=reply.failed,
                perplexity=reply.perplexity,
                worse=worse.get(label, ""),
                lower="" if label in worse else lower.get(label, ""),
            )
        )
    return TaskScores(rule=RULE, scores=scores)


def _count(reply: TaskReply) -> str:
    failed = f" ({reply.failed} requests failed)" if reply.failed else ""
    return f"{sum(reply.right)} of {len(reply.right)}{failed}"
