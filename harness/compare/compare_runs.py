"""Run B against run A, engine by engine and load by load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Literal

from harness.compare.comparable import NAMES, obstacles
from harness.compare.stored_run import StoredRun
from harness.errors import UsageError
from harness.metrics.contrast import Contrast, judged, repeats_to_find
from harness.metrics.contrast import contrast as compare
from harness.metrics.estimates import Estimates
from harness.metrics.intervals import LEVEL, Ends, Estimate, error_rate_ends, level
from harness.schema.compare_results import CompareResults, Difference, Disturbance, Gated, Outcome
from harness.schema.limits import ERROR_RATE, GateTerm
from harness.schema.load import Load
from harness.schema.metrics import METRICS


def outcome(term: GateTerm, bound: float, ci: Ends | None) -> Outcome:
    """Pass where the interval is wholly within `bound`, a regression where it is wholly beyond."""
    if ci is None:
        return "inconclusive"
    low, high = ci if term.at_most else (-ci[1], -ci[0])
    bound = bound if term.at_most else -bound
    return "pass" if high <= bound else "regression" if low > bound else "inconclusive"


def _judge_ratio(gated: Gated, term: GateTerm, found: Contrast | None) -> Gated:
    """A gate on a latency or a rate against run A's. `found` is None where A or B has no such statistic at
    that load, or A's is 0."""
    if found is None:
        return gated.model_copy(update={"reason": "A or B has no such value, or A's is 0"})
    nothing = not found.a.value and found.b.repeats > 1 and found.b.has_log  # where A always has some
    gated = _with_value(gated, term, found.ratio.value, (0.0, 0.0) if nothing else found.ratio.ci)
    return _with_reason(gated, term, found.missing, found.spread, found.repeats, found.paired)


def _judge_value(gated: Gated, term: GateTerm, new: Estimate | None) -> Gated:
    """A gate on a latency or a rate by itself. `new` is run B's; None where it has no such statistic."""
    if new is None:
        return gated.model_copy(update={"reason": "B has no such value"})
    gated = _with_value(gated, term, new.value, level(new))
    spread = new.spread(log=True) if new.has_log else None
    return _with_reason(gated, term, new.missing, spread, (new.repeats, new.repeats), paired=True)


def _with_value(gated: Gated, term: GateTerm, value: float, ci: Ends | None) -> Gated:
    update = {"value": value, "ci": ci, "outcome": outcome(term, gated.limit, ci)}
    return gated.model_copy(update=update)


def _with_reason(
    gated: Gated, term: GateTerm, missing: int, spread: float | None, repeats: tuple[int, int], paired: bool
) -> Gated:
    """The same; one that is inconclusive says why, and what would decide it.

    Args:
        missing: requests or tokens that a repeat lacks.
        spread: of the logarithm from repeat to repeat, seen in so many `repeats`; None: not seen.
        paired: there is one sample: repeats that are compared one by one, with the spread of their ratio, or
            those of one run.
    """
    if gated.outcome != "inconclusive" or gated.value is None:
        return gated
    more, runs = None, "of each" if gated.relative else "of B"
    if missing:
        what = f"{METRICS[term.metric].sample}s"
        reason = f"{term.statistic} has no interval: each repeat needs {missing} more {what}"
    elif gated.ci is None and min(repeats) > 1:
        reason = "its repeats give no interval: measure more of them, or more requests"
    elif spread is None:
        reason = f"one repeat does not show how repeats differ: measure 2 or more {runs}"
    else:
        if gated.limit != gated.value:
            more = repeats_to_find(gated.limit / gated.value - 1, spread, repeats, paired=paired)
        reason = "the interval contains the limit; " + (
            f"about {more} repeats {runs} would decide"
            if more
            else "no number of repeats is likely to decide"
        )
    return gated.model_copy(update={"reason": reason, "needed_repeats": more})


def _judge_errors(gated: Gated, term: GateTerm, repeats: Sequence[tuple[int, int]]) -> Gated:
    """A gate on run B's share of failed requests. `repeats`: how many failed, of how many, in each."""
    failed, counts = zip(*repeats, strict=True)
    ends = error_rate_ends(failed, counts)
    gated = _with_value(gated, term, sum(failed) / sum(counts), ends)
    reasons = []
    if gated.outcome == "inconclusive":
        failures = f"{sum(failed)} of {sum(counts)} requests failed"
        reasons.append(f"{failures}, which does not decide it: measure more requests in more repeats")
    if len(repeats) == 1:
        reasons.append("one repeat shows what one server does, not how they differ")
    return gated.model_copy(update={"reason": "; ".join(reasons)})


Pair = tuple[str, str]


def compare_runs(
    a: Path,
    b: Path,
    gates: Sequence[GateTerm] = (),
    engine_a: str | None = None,
    engine_b: str | None = None,
    allowed: Sequence[str] = (),
) -> CompareResults:
    """Compare the raw times of two runs, or the batches of two offline ones. Verdicts hold for all engines,
    loads and statistics together.

    Args:
        gates: All must hold, for every engine and load.
        engine_a: Compare only this engine of A, a label or `NAME[@VARIANT]`.
        engine_b: And only this one of B. With one of the two, the other is the engine of the same label, and
            of one run with itself every other one. With neither, every engine whose label is in both runs is
            compared, and of one run with itself every pair of engines.
        allowed: Names of what may differ, of `comparable.NAMES`.

    Raises:
        UsageError: A folder holds no run, one run is online and the other offline, an engine is not in it, a
            name is unknown, or a gate asks for what was not measured.
    """
    if unknown := [name for name in allowed if name not in NAMES]:
        raise UsageError(f"there is no difference {unknown[0]!r} to allow", f"known: {', '.join(NAMES)}")
    runs = StoredRun.read(a), StoredRun.read(b)
    kinds = [run.info.kind for run in runs]
    if kinds[0] != kinds[1]:
        raise UsageError(
            f"{a} is a run of bench {kinds[0]} and {b} of bench {kinds[1]}",
            "compare two runs of the same command; bench report A B shows both",
        )
    pairs = _pairs(*runs, engine_a, engine_b)
    differing = obstacles(*runs, pairs, allowed, every=engine_a is None and engine_b is None)
    differences: list[Difference] = []
    gated: list[Gated] = []
    comparable = bool(pairs) and all(obstacle.allowed for obstacle in differing)
    if comparable:
        for gate, run in product(gates, runs):
            run.check(gate)
        gate_keys = [(gate.metric, gate.statistic) for gate in gates]
        keys = list(dict.fromkeys([*runs[0].compared, *gate_keys]))
        estimated = {pair: _estimates(*runs, pair) for pair in pairs}
        unjudged = [
            (pair, contrast)
            for pair in pairs
            for load, (base, new) in estimated[pair].items()
            for contrast in compare(load, new, base, keys)
        ]
        verdicts = judged([contrast for _, contrast in unjudged])
        contrasts = [(pair, contrast) for (pair, _), contrast in zip(unjudged, verdicts, strict=True)]
        differences += [_difference(pair, contrast) for pair, contrast in contrasts]
        for pair in pairs:
            of_pair = [contrast for other, contrast in contrasts if other == pair]
            gated += _judge(runs[1], pair, estimated[pair], of_pair, gates)
    return CompareResults(
        a=str(a),
        b=str(b),
        outcome=worst_outcome(gated, gates) if comparable else "not comparable",
        level=LEVEL,
        comparisons=sum(difference.adjusted_p is not None for difference in differences),
        obstacles=differing,
        disturbed=_disturbed(runs, pairs) if comparable else [],
        differences=differences,
        gates=gated,
    )


def _disturbed(runs: tuple[StoredRun, StoredRun], pairs: Sequence[Pair]) -> list[Disturbance]:
    """Return the disturbances of the engines that are compared, each once; of one run with itself it is A."""
    same = runs[0].path.resolve() == runs[1].path.resolve()
    compared = dict.fromkeys(
        (0 if same else side, label) for side in (0, 1) for label in (pair[side] for pair in pairs)
    )
    return [
        Disturbance(run="AB"[side], label=label, load=load, facts=facts)
        for side, label in compared
        for load in sorted(runs[side].cells[label])
        if (facts := runs[side].disturbed(label, load))
    ]


def _pairs(a: StoredRun, b: StoredRun, engine_a: str | None, engine_b: str | None) -> list[Pair]:
    of_a = None if engine_a is None else a.label(engine_a)
    of_b = None if engine_b is None else b.label(engine_b)
    if of_a is not None and of_b is not None:
        if of_a == of_b and a.path.resolve() == b.path.resolve():
            raise UsageError(f"A and B are both {of_a!r} of {a.path}", "name another engine or another run")
        return [(of_a, of_b)]
    if a.path.resolve() == b.path.resolve():
        return _within(a, of_a, of_b)
    if of_a is not None:
        return [(of_a, _same(of_a, b, "--engine-b"))]
    if of_b is not None:
        return [(_same(of_b, a, "--engine-a"), of_b)]
    return [(label, label) for label in a.cells if label in b.cells]


def _same(label: str, other: StoredRun, option: str) -> str:
    """The engine with that label in the other run."""
    if label not in other.cells:
        labels = ", ".join(map(repr, other.cells))
        raise UsageError(f"{other.path} has no engine {label!r}", f"name one of it with {option}: {labels}")
    return label


def _within(run: StoredRun, of_a: str | None, of_b: str | None) -> list[Pair]:
    """Every pair of engines of one run; with one engine named as A or as B, its pairs."""
    if len(run.cells) == 1:
        raise UsageError(f"A and B are both {run.path}, which has one engine", "name two runs")
    others = [label for label in run.cells if label not in (of_a, of_b)]
    if of_a is not None:
        return [(of_a, other) for other in others]
    return list(combinations(run.cells, 2)) if of_b is None else [(other, of_b) for other in others]


def _estimates(a: StoredRun, b: StoredRun, pair: Pair) -> dict[Load, tuple[Estimates, Estimates]]:
    """Return both estimates of a pair at the loads of both runs."""
    common = sorted(a.cells[pair[0]].keys() & b.cells[pair[1]].keys())
    return {load: (a.estimates(pair[0], load), b.estimates(pair[1], load)) for load in common}


def _judge(
    b: StoredRun,
    pair: Pair,
    estimated: Mapping[Load, tuple[Estimates, Estimates]],
    contrasts: Sequence[Contrast],
    gates: Sequence[GateTerm],
) -> list[Gated]:
    """Every gate at every load of both, also where no request succeeded and nothing can be compared."""
    by_key = {(contrast.load, contrast.metric, contrast.statistic): contrast for contrast in contrasts}
    return [
        judge(gate, pair, load, b, new, by_key.get((load, gate.metric, gate.statistic)))
        for gate in gates
        for load, (_, new) in estimated.items()
    ]


def judge(
    term: GateTerm, engines: Pair, load: Load, b: StoredRun, new: Estimates, found: Contrast | None
) -> Gated:
    """Judge B by one term: its failures, its value, or what was found of B against A."""
    gated = Gated(
        gate=term.text,
        relative=term.relative,
        engine_a=engines[0],
        engine_b=engines[1],
        load=load,
        value=None,
        ci=None,
        limit=1 + term.limit if term.relative else term.limit,
        outcome="inconclusive",
    )
    if term.metric == ERROR_RATE:
        return _judge_errors(gated, term, b.failures(engines[1], load))
    if term.relative:
        return _judge_ratio(gated, term, found)
    return _judge_value(gated, term, new.get((term.metric, term.statistic)))


def worst_outcome(
    gated: Sequence[Gated], gates: Sequence[GateTerm]
) -> Literal["pass", "regression", "inconclusive", "no gate"]:
    outcomes = {judged.outcome for judged in gated}
    for worst in ("regression", "inconclusive", "pass"):
        if worst in outcomes:
            return worst
    return "inconclusive" if gates else "no gate"


def _difference(pair: Pair, contrast: Contrast) -> Difference:
    return Difference(
        engine_a=pair[0],
        engine_b=pair[1],
        **contrast.recorded,
        value_a=contrast.b.value,
        value_b=contrast.a.value,
        difference=contrast.delta.value,
        difference_ci=contrast.delta.ci,
        ratio_ci=contrast.ratio.ci,
        repeats_a=contrast.b.repeats,
        repeats_b=contrast.a.repeats,
        paired=contrast.paired,
        missing_samples=contrast.missing,
    )
