"""What is claimed of the best engine by one metric."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import inf

from harness.report.best import better, differs, disturbed_labels, excludes_one, says_nothing
from harness.report.text.numbers import MANY, decimals, few, number, plural, several, with_ends
from harness.report.winners import PERCENTILES, Lost, Winner, pairs_of, ranked
from harness.schema.metric import Metric
from harness.schema.metrics import METRICS
from harness.schema.online_summary import OnlineSummary
from harness.schema.results import Comparison

#: From this factor on one decimal is enough, and from the other on none.
_ONE_DECIMAL, _WHOLE = 1.5, 100
LARGEST = "the largest difference shown in this run"
#: What several sentences need to say once.
_ONCE = (re.compile("95 % interval "), re.compile(r" after correction for [\d,]+ comparisons"))


def claim(
    engines: Sequence[OnlineSummary],
    found: Winner | None,
    term: Metric,
    largest: Comparison | None,
    named: Sequence[str] = (),
) -> str:
    """The best engine against the next that it really differs from, and what those have that are `named`
    elsewhere."""
    if found is None:
        without = without_any(engines, term)
        return f"{without}." if without else f"too few requests were measured to compare {term.label}."
    if found.loser is None or found.comparison is None:
        what = f"{term.label} {found.statistic}" if term.is_latency else term.label
        alike = few([found.label, *found.level])
        nearest = found.comparison
        values = level_values(engines, found)
        if nearest is not None and excludes_one(nearest.ci):
            differences = "difference" if len(found.level) == 1 else "differences"
            said = f"the {differences} in {what}{'' if values else f' between {alike}'} may be chance"
            said += f": {several(values)}" if values else ""
        elif values:
            said = f"no difference is shown in {what}: {several(values)}"
        else:
            said = f"no difference is shown in {what} between {alike}"
        said += f"{_ratio(nearest)}."
        return said + _in_others(engines, found, largest)
    said = value_of(engines, found.label, found.comparison)
    said += than(engines, found.loser, found.comparison)
    compared = {found.label, found.loser, *found.level}
    if largest is not None and _is_its_own(found, largest):
        other = in_order(largest)[1]
        if other != found.loser:
            said += than(engines, other, largest, again=True)
            compared.add(other)
        said += f", {LARGEST}"
    said += _no_difference(found)
    for label in dict.fromkeys(named):
        if label not in compared:
            said += than(engines, label, found.pairs[label], again=True)
    return f"{said}.{_in_others(engines, found, largest)}"


def without_any(engines: Iterable[OnlineSummary], term: Metric) -> str:
    """Which engines have no time between tokens, whatever they answered, and why; empty where none."""
    found: dict[str, int] = {}
    for each in engines:
        if each.num_success and term.name in ("tpot_ms", "itl_ms"):
            found[each.label] = found.get(each.label, 0) + each.latency(term.name).n
    labels = [label for label, count in found.items() if count == 0]
    if not labels:
        return ""
    single = len(labels) == 1
    return (
        f"{few(labels)} {'has' if single else 'have'} no {term.label}, as "
        f"{'its' if single else 'their'} answers have one token or come all at once"
    )


def on_disturbed(measured: Iterable[OnlineSummary]) -> str:
    """Whether compared engines were measured on a disturbed machine; which one, where it is one."""
    labels = disturbed_labels(measured)
    if len(labels) > 1:
        return ", on a disturbed machine"
    return f", on a machine that was disturbed while {labels[0]} was measured" if labels else ""


def _is_its_own(found: Winner, largest: Comparison) -> bool:
    """Whether the largest difference is one by which the winner wins."""
    assert found.comparison is not None
    mine, its = ((each.load, each.metric, each.statistic) for each in (found.comparison, largest))
    return mine == its and in_order(largest)[0] == found.label


def _no_difference(found: Winner) -> str:
    """From which engines no difference is shown."""
    said = f"; the difference from {few(found.alike)} may be chance" if found.alike else ""
    others = []
    for comparison in found.unproven:
        size, ends = factor(comparison)
        others.append(f"{comparison.b if comparison.a == found.label else comparison.a} ({size}, {ends})")
    if len(others) == 1:
        said += f"; the difference from {others[0]} is {not_significant(found.unproven[0])}"
    elif others:
        said += f"; the differences from {several(others)} are {not_significant(found.unproven[0])}"
    return said


def _in_others(engines: Sequence[OnlineSummary], found: Winner, largest: Comparison | None) -> str:
    """In which other percentiles other engines are better, and by how much: ` But vLLM is better than A in
    TTFT p90 (76.5 and 96.3 ms, 1.26×). vLLM and B are better than A in TTFT p50 (45.6, 50.2 and 96.3 ms, up
    to 2.1×).`"""
    said: dict[str, list[str]] = {}
    for lost in found.others:
        largest_of_all = f", {LARGEST}" if lost.comparison == largest else ""
        by = f"{lost.statistic} ({_values(engines, lost)}{largest_of_all})"
        said.setdefault(_are_better(lost), []).append(by)
    term = METRICS[found.metric]
    but = " But" if found.others and found.others[0].label == found.label else ""
    return but + "".join(f" {better} {term.label} {several(by)}." for better, by in said.items())


def lost_in_others(engines: Sequence[OnlineSummary], elsewhere: Sequence[Lost]) -> str:
    """By which latencies an engine that is the best in others is not, and how many times as much it has:
    `vLLM and B are better than A in ITL p50 (7.76, 8.03 and 21.0 ms, up to 2.7×)`."""
    said: dict[str, list[str]] = {}
    for lost in elsewhere:
        name = f"{METRICS[lost.comparison.metric].label} {lost.statistic}"
        said.setdefault(_are_better(lost), []).append(f"{name} ({_values(engines, lost)})")
    return f"{'; '.join(f'{better} {several(by)}' for better, by in said.items())}."


def _are_better(lost: Lost) -> str:
    """`vLLM is better than A in`."""
    return f"{several(lost.better)} {'is' if len(lost.better) == 1 else 'are'} better than {lost.label} in"


def _values(engines: Sequence[OnlineSummary], lost: Lost) -> str:
    """The better values, the other one, and how many times as much that is as the best: `7.76, 8.03 and 21.0
    ms, up to 2.7×`."""
    values = [_value(engines, label, lost.comparison) for label in (*lost.better, lost.label)]
    most = "up to " if len(lost.better) > 1 else ""
    return f"{several(values)} {METRICS[lost.comparison.metric].unit}, {most}{times(lost.comparison)}"


def no_worse(
    engines: Sequence[OnlineSummary], label: str, found: Comparison, comparisons: Sequence[Comparison]
) -> str:
    """The engines whose value is better than that of `label`, which is better than another one's."""
    term, pairs = METRICS[found.metric], pairs_of(engines, comparisons, found.metric, found.statistic)
    names = ranked(engines, found.metric, found.statistic)
    said = ""
    for name in names[: names.index(label)]:
        pair = pairs.get(frozenset((name, label)))
        alike = "" if pair is not None and differs(pair) else ", from which no difference is shown"
        said += f"; {name} has {_value(engines, name, found)} {term.unit}{alike}"
    return said


def level_values(engines: Sequence[OnlineSummary], found: Winner) -> list[str]:
    """`A has 16.8 ms`, `B 19.1 ms`: the best engine and those from which it shows no difference, which may be
    far apart; none where there are too many for a sentence."""
    labels = (found.label, *found.level)
    if len(labels) > MANY:
        return []
    by_label = {engine.label: engine for engine in engines}
    term = METRICS[found.metric]
    unit = f" {term.unit}" if term.is_latency else ""
    values = [by_label[label].value(found.metric, found.statistic) for label in labels]
    said = [f"{number(value, decimals([value]))}{unit}" for value in values]
    return [f"{labels[0]} has {said[0]}", *map(" ".join, zip(labels[1:], said[1:], strict=True))]


def higher_percentiles(latencies: Sequence[Winner]) -> str:
    """What is shown in percentiles above the one that is compared, and why they are not compared."""
    said = [
        f"In {METRICS[found.metric].label} {several(names)} {found.label} is better{than} too."
        for found in latencies
        for names, than in also(found)
    ]
    too_few = [(found, found.too_few) for found in latencies if found.too_few]
    undecided = [(found, found.undecided) for found in latencies if found.undecided]
    if too_few:
        found, names = too_few[0]
        forced = not undecided and PERCENTILES.index(found.statistic) == len(names)
        instead = f", so {found.statistic} is compared" if forced else ""
        said.append(f"For {_where(too_few, latencies)} there are too few independent requests{instead}.")
    if undecided:
        instead = undecided[0][0].statistic
        where = _where(undecided, latencies)
        said.append(f"In {where} no difference from the lowest value is shown, so {instead} is compared.")
    return " ".join(said)


def _where(found: Sequence[tuple[Winner, tuple[str, ...]]], latencies: Sequence[Winner]) -> str:
    """Percentiles of some latencies, from low to high, without the latencies' names where all have the same:
    `p90 and p99`, `TTFT p99`."""
    first = several(reversed(found[0][1]))
    if len(found) == len(latencies) and len({names for _, names in found}) == 1:
        return first
    if len(found) == 1:
        return f"{METRICS[found[0][0].metric].label} {first}"
    return several(f"{METRICS[best.metric].label} {at}" for best, names in found for at in reversed(names))


def also(found: Winner) -> list[tuple[list[str], str]]:
    """Higher percentiles in which the winner is better too, from low to high, with ` than …` where it is not
    better than all."""
    by: dict[tuple[str, ...], list[str]] = {}
    for name, losers in reversed(found.also):
        by.setdefault(losers, []).append(name)
    return [(names, f" than {several(losers)}" if losers else "") for losers, names in by.items()]


def value_of(engines: Sequence[OnlineSummary], label: str, found: Comparison) -> str:
    """`A has a TTFT p50 of 1.46 ms`, `A reaches 349 output tok/s`."""
    term, value = METRICS[found.metric], _value(engines, label, found)
    if not term.lower_is_better:
        return f"{label} reaches {value} {term.label}"
    article = "an" if term.label[0] in "AEIO" else "a"
    return f"{label} has {article} {term.label} {found.statistic} of {value} {term.unit}"


def than(engines: Sequence[OnlineSummary], label: str, found: Comparison, *, again: bool = False) -> str:
    """How much better that is than the value of another engine, with the interval: `, 1.6× as much as B with
    224 (…)`, `; B has 3.8× as much, 617 ms (…)`.

    Args:
        again: Another such clause stands before it.
    """
    term, value = METRICS[found.metric], _value(engines, label, found)
    size, ends = factor(found)
    interval = f"(95 % interval {ends})"
    if not term.lower_is_better:
        return f"{' and' if again else ','} {size} as much as {label} with {value} {interval}"
    has = f" and {label}" if again else f"; {label} has"
    return f"{has} {size} as much, {value} {term.unit} {interval}"


def _value(engines: Sequence[OnlineSummary], label: str, found: Comparison) -> str:
    value = next(engine for engine in engines if engine.label == label).value(found.metric, found.statistic)
    return number(value, decimals([value]))


def in_order(found: Comparison) -> tuple[str, str]:
    """The label of the better engine, then the other one."""
    best = better(found)
    return best, found.b if best == found.a else found.a


def first_time_in_full(before: Sequence[str], sentence: str) -> str:
    """The sentence without the words about intervals and corrections that come before, there or in it."""
    for words in _ONCE:
        said = any(words.search(other) for other in before)
        first = words.search(sentence)
        kept = first.end() if first and not said else 0
        sentence = sentence[:kept] + words.sub("", sentence[kept:])
    return sentence


def _ratio(nearest: Comparison | None) -> str:
    """How much the higher one of the nearest pair has, with its interval, in brackets."""
    if nearest is None or nearest.ci is None:
        return ""
    unproven = f"; {not_significant(nearest)}" if excludes_one(nearest.ci) else ""
    size, ends = factor(nearest)
    lower, higher = (nearest.a, nearest.b) if nearest.ratio < 1 else (nearest.b, nearest.a)
    said = f"{higher} has {size} as much as {lower}"
    if says_nothing(nearest.ci):
        return f" ({said}; too few repeats for a useful interval)"
    return f" ({said}, 95 % interval {ends}{unproven})"


def not_significant(comparison: Comparison) -> str:
    """What is said of a difference whose own interval excludes a ratio of 1, but not the corrected one."""
    return f"not significant after correction for {comparison.comparisons} comparisons"


def too_few(comparison: Comparison) -> str:
    """Why it is not: `3 repeats are too few to show it among 108 comparisons`."""
    repeats = min(comparison.repeats)
    are = "is" if repeats == 1 else "are"
    among = f" among {comparison.comparisons} comparisons" if comparison.comparisons > 1 else ""
    return f"{plural(repeats, 'repeat')} {are} too few to show it{among}"


def factor(comparison: Comparison) -> tuple[str, str]:
    """How many times the lower one the higher one is, and the interval."""
    ratio, (low, high) = comparison.ratio, comparison.ci or (comparison.ratio, comparison.ratio)
    if ratio < 1:
        ratio, low, high = 1 / ratio, 1 / high, 1 / low if low else inf
    size, *ends = with_ends(ratio, (low, high), _places(ratio))
    return f"{size}×", f"{ends[0]}× to {ends[1]}×"


def times(comparison: Comparison) -> str:
    """As `factor`, where no interval stands beside it that asks for more digits."""
    ratio = max(comparison.ratio, 1 / comparison.ratio)
    size = f"{ratio:.{_places(ratio)}f}"
    return f"{size}×" if float(size) > 1 else factor(comparison)[0]


def _places(ratio: float) -> int:
    return 0 if ratio >= _WHOLE else 1 if ratio >= _ONE_DECIMAL else 2
