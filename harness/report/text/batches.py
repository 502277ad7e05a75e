"""What `bench offline` found, in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from harness.engines.registry import LOCAL
from harness.metrics.intervals import Ends
from harness.report.best import excludes_one
from harness.report.text.claims import on_disturbed, too_few
from harness.report.text.numbers import decimals, few, number, with_ends
from harness.report.text.unfinished import why_nothing
from harness.schema.results import BatchRow, Comparison, OnlineResults


@dataclass(frozen=True)
class BestOfBatch:
    """The engine with the most output tokens a second.

    Attributes:
        means: Output tokens a second of each engine, the mean of its repeats, the highest first.
        others: Other engines and variants, else all others: an engine may stand twice, through its server and
            in one process. Those that it has a repeat in common with are compared.
        leads: Whether it differs from every other row by more than chance, those of the same engine too.
        served: Those that were measured through a server.
    """

    means: dict[str, float]
    others: dict[str, Comparison | None]
    leads: bool
    served: frozenset[str]

    @property
    def label(self) -> str:
        return next(iter(self.means))

    @property
    def pairs(self) -> dict[str, Comparison]:
        return {other: found for other, found in self.others.items() if found is not None}

    @property
    def loser(self) -> str | None:
        """The best of those that it differs from by more than chance."""
        return next((other for other, found in self.pairs.items() if found.verdict != "no difference"), None)

    @property
    def level(self) -> list[str]:
        """Those from which it shows no difference."""
        return [other for other, found in self.pairs.items() if found.verdict == "no difference"]

    @property
    def value(self) -> str:
        return rate_text(self.means[self.label])

    def no_difference(self) -> str:
        """`A has 239 and B has 238 (A has 1.00× as much as B, 95 % interval 0.93× to 1.08×)`."""
        said = few([self._has(label) for label in self.means])
        if not self.level:
            return said
        nearest, *others = self.level
        ratio, *ends = self._ratio(nearest)
        interval = f", 95 % interval {ends[0]}× to {ends[1]}×" if ends else ""
        found = self.pairs[nearest]
        unproven = f"; {too_few(found)}" if excludes_one(found.ci) else ""
        said += f" ({self.label} has {ratio}× as much as {nearest}{interval}{unproven})"
        apart = [self._unproven(other) for other in others if excludes_one(self.pairs[other].ci)]
        return "; ".join([said, *apart])

    def same_engine(self) -> list[str]:
        """What the same engine has that was asked the other way."""
        return [self._has(label) for label in self.means if label not in (self.label, *self.others)]

    def _has(self, label: str) -> str:
        """`A has 239`, `A (through its server) has 239`."""
        way = " (through its server)" if label in self.served else ""
        return f"{label}{way} has {rate_text(self.means[label])}"

    def unproven(self) -> list[str]:
        """What is said of those from which it shows no difference."""
        return [self._unproven(other) for other in self.level]

    def _unproven(self, other: str) -> str:
        """`A has 1.05× as much as B (95 % interval 0.98× to 1.12×), which may be chance`."""
        found = self.pairs[other]
        why = f"but {too_few(found)}" if excludes_one(found.ci) else "which may be chance"
        return f"{self.label} has {self.times(other)} as much as {other}{self.interval(other)}, {why}"

    def times(self, other: str) -> str:
        """How many times as much as another one."""
        return f"{self._ratio(other)[0]}×"

    def interval(self, other: str) -> str:
        """Of that, in brackets; nothing without one."""
        _, *ends = self._ratio(other)
        return f" (95 % interval {ends[0]}× to {ends[1]}×)" if ends else ""

    def _ratio(self, other: str) -> list[str]:
        """Of the two rates, with the ends of its interval where it has one."""
        ratio, ends = ratio_of(self.pairs[other], self.label)
        return [f"{ratio:.2f}"] if ends is None else with_ends(ratio, ends)


def best_of_batch(results: OnlineResults) -> BestOfBatch | None:
    """None without a result."""
    means = mean_rates(results.results)
    if not means:
        return None
    kind = {result.label: (result.engine, result.variant) for result in results.results}
    best, *rest = means
    others = [label for label in rest if kind[label] != kind[best]] or rest
    pairs = {frozenset((found.a, found.b)): found for found in results.comparisons}
    against = {other: pairs.get(frozenset((best, other))) for other in rest}
    leads = all(found is not None and found.verdict != "no difference" for found in against.values())
    served = frozenset(result.label for result in results.results if _is_served(result))
    return BestOfBatch(means, {other: against[other] for other in others}, leads and bool(rest), served)


def ways_asked(results: Iterable[BatchRow]) -> str:
    """`roseinfer through its server, all others in-process`; empty where all are in-process."""
    served = {result.label: _is_served(result) for result in results}
    labels = [label for label, through in served.items() if through]
    if not labels:
        return ""
    others = ", all others in-process" if len(labels) < len(served) else ""
    return f"{few(labels)} through its server{others}"


def _is_served(result: BatchRow) -> bool:
    """Whether it was measured through its server."""
    engine = LOCAL.get(result.engine)
    return engine is not None and engine.batches_by_server and not result.label.endswith("in-process)")


def mean_rates(results: Iterable[BatchRow]) -> dict[str, float]:
    """Output tokens a second of each label, the mean of its repeats, the highest first."""
    rates: dict[str, list[float]] = {}
    for result in results:
        rates.setdefault(result.label, []).append(result.output_tok_per_s)
    means = {label: fmean(values) for label, values in rates.items()}
    return dict(sorted(means.items(), key=lambda item: -item[1]))


def batch_verdict(results: OnlineResults) -> list[str]:
    """The engine with the most output tokens a second, and those that it differs from by more than chance."""
    best = best_of_batch(results)
    if best is None:
        return why_nothing(results.skipped)
    disturbed = on_disturbed(cell for cell in results.summaries if cell.repeat is not None)
    reached = f"{best.label} reaches {best.value} output tok/s{disturbed}"
    if not best.others:
        return [
            f"{reached}.",
            "There is no second engine to compare with.",
        ]
    if best.loser is None:
        return [f"No difference is shown in output tok/s{disturbed}: {best.no_difference()}."]
    than = f"{best.times(best.loser)} as much as {best.loser} with {rate_text(best.means[best.loser])}"
    said = f"{reached}, {than}{best.interval(best.loser)}"
    return ["; ".join([said, *best.same_engine(), *best.unproven()]) + "."]


def ratio_of(found: Comparison, label: str) -> tuple[float, Ends | None]:
    """The ratio of one of the two to the other, and its interval."""
    if found.a == label:
        return found.ratio, found.ci
    return 1 / found.ratio, None if found.ci is None else (1 / found.ci[1], 1 / found.ci[0])


def rate_text(rate: float) -> str:
    """Tokens a second, with three digits or more."""
    return number(rate, decimals([rate]))
