"""Gates of a run against the history: the same as between two runs, on the estimates of the store."""

from __future__ import annotations

from collections.abc import Sequence

from harness.compare.compare_runs import judge, worst_outcome
from harness.compare.stored_run import StoredRun
from harness.errors import UsageError
from harness.history.store import Past, Store, alike_hash
from harness.metrics.contrast import contrast
from harness.metrics.intervals import LEVEL
from harness.schema.compare_results import CompareResults, Gated
from harness.schema.limits import ERROR_RATE, GateTerm
from harness.schema.load import Load
from harness.schema.metrics import METRICS

_NO_PAST = "the history has no baseline for this engine at this load"


def gate(store: Store, run: StoredRun, against: str, terms: Sequence[GateTerm]) -> CompareResults:
    """Judge a run, which need not be in the store, by what was measured before with the same settings on the
    same hardware.

    Args:
        against: `last` is the newest of these runs; `best`, for each engine and load, the one with the best
            value of the first term that is no error rate, which is judged alone; anything else the newest of
            a git revision that begins so.

    Raises:
        UsageError: There is no such run, or something of the run was not measured or is invalid.
    """
    if not against:
        raise UsageError("--against: no revision is given", "give last, best or the beginning of a revision")
    for term in terms:
        run.check(term)
    if run.not_measured:
        label, load = run.not_measured[0]
        raise UsageError(f"{label} at {load} is part of {run.path} and was not measured", run.hint)
    alike = alike_hash(run)
    baselines = [past for past in store.runs() if past.alike == alike and not _is_it(store, past, run)]
    if not baselines:
        raise UsageError(
            f"the history has no other run with the settings and the machine of {run.path}",
            "add one: bench history add RUN",
        )
    chosen = [past for past in baselines if past.created <= run.info.created] or baselines
    if against not in ("last", "best"):
        chosen = [past for past in baselines if (past.revision or "").startswith(against)]
        if not chosen:
            revisions = ", ".join(dict.fromkeys((past.revision or "unknown")[:10] for past in baselines))
            raise UsageError(f"the history has no such run of revision {against!r}", f"known: {revisions}")
    of_errors = [term for term in terms if term.metric == ERROR_RATE]
    best_by = next((term for term in terms if term.metric != ERROR_RATE), None) if against == "best" else None
    gated: list[Gated] = []
    failed: list[Gated] = []
    names: list[str] = []
    for label, loads in run.cells.items():
        if reasons := run.missing(label):
            raise UsageError(f"a repeat is missing: {reasons[0]}", run.hint)
        if reasons := run.invalid(label):  # requests that fail are one of them
            judged = [gate for load in loads for gate in _judged(store, None, run, label, load, of_errors)]
            worst = [gate for gate in judged if gate.outcome == "regression"]
            if not worst:
                raise UsageError(f"{reasons[0]}", "repeat the run: what is invalid is not judged")
            failed += worst
            continue
        for load in loads:
            past = _baseline(store, chosen, label, load, best_by)
            if past is not None:
                names.append(past.name)
            gated += _judged(store, past, run, label, load, terms)
    gated += failed
    if not names and not failed:
        raise UsageError("the history has none of the run's engines at its loads", "add a run that has them")
    return CompareResults(
        a=f"history: {', '.join(dict.fromkeys(names))}",
        b=str(run.path),
        outcome=worst_outcome(gated, terms),
        level=LEVEL,
        comparisons=0,
        obstacles=[],
        differences=[],
        gates=gated,
    )


def _is_it(store: Store, past: Past, run: StoredRun) -> bool:
    """Return whether a run in the store is `run` or a copy: begun in the same second, with equal values."""
    if past.created != run.info.created:
        return False
    return past.name == run.path.resolve().name or all(
        (stored := store.estimates(past, label, load).get(key)) is not None and stored.value == new.value
        for label, loads in run.cells.items()
        for load in loads
        for key, new in run.estimates(label, load).items()
    )


def _baseline(store: Store, runs: Sequence[Past], label: str, load: Load, by: GateTerm | None) -> Past | None:
    """Return the newest run that has the engine at that load, or the best by a term; None: none has it."""
    estimates = [(past, store.estimates(past, label, load)) for past in runs]
    measured = [(past, of_past) for past, of_past in estimates if of_past]
    if by is None:
        return measured[-1][0] if measured else None
    values = [
        (of_past[by.metric, by.statistic].value, past)
        for past, of_past in measured
        if (by.metric, by.statistic) in of_past
    ]
    pick = min if METRICS[by.metric].lower_is_better else max
    return pick(values, key=lambda pair: pair[0])[1] if values else None


def _judged(
    store: Store, past: Past | None, run: StoredRun, label: str, load: Load, terms: Sequence[GateTerm]
) -> list[Gated]:
    """Judge a load by all terms; without a past, only limits of the run alone can be decided."""
    keys = [(term.metric, term.statistic) for term in terms]
    new = run.estimates(label, load)
    contrasts = {
        (contrasted.metric, contrasted.statistic): contrasted
        for contrasted in contrast(load, new, store.estimates(past, label, load) if past else {}, keys)
    }
    pair = label, label
    gated = [
        judge(term, pair, load, run, new, contrasts.get(key)) for term, key in zip(terms, keys, strict=True)
    ]
    if past:
        return gated
    return [each.model_copy(update={"reason": _NO_PAST}) if each.relative else each for each in gated]
