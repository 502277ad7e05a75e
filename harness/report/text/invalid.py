"""How many cells are invalid, and why, in one sentence for the head of a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from harness.metrics.notices import machine_loads
from harness.metrics.stability import kept_busy
from harness.metrics.validity import OPENING
from harness.report.text.numbers import plural, several
from harness.runs.reader import OnlineRun
from harness.schema.engine_ref import RUNNING_SERVER
from harness.schema.invalid_reason import InvalidKind
from harness.schema.online_summary import OnlineSummary

#: What is said of a kind of reason.
_CAUSES: dict[InvalidKind, str] = {
    "late": "the client sent late",
    "busy": "a client process had too much to do",
    "no_success": "no request succeeded",
    "failures": "requests failed",
    "answers": "answers are wrong",
    "accuracy": "an engine scores below another",
    "unmeasured": "no request was sent in the part that is measured",
}
#: Causes that are named.
_MOST = 2


def invalid_cells(run: OnlineRun) -> str:
    """`4 of 6 cells are invalid: the client sent late. Use a lighter load …`; empty where all are valid."""
    wrong = [summary for summary in run.pooled if not summary.valid]
    if not wrong:
        return ""
    counts = Counter(kind for summary in wrong for kind in dict.fromkeys(summary.invalid_kinds))
    kinds = [kind for kind, _ in counts.most_common(_MOST)]
    busy = _busy(run, wrong) if "late" in kinds else ""
    said = [f"{_CAUSES[kind]}{busy if kind == 'late' else ''}" for kind in kinds]
    count, of_all = invalid_count(run)
    why = several(said) if said else "the warnings say why"
    verb = "is" if count == 1 else "are"
    return f"{count} of {of_all} {verb} invalid: {why}. {_hint(wrong, kinds, busy)}"


def invalid_count(run: OnlineRun) -> tuple[int, str]:
    """How many cells are invalid, and how many there are: `(4, "18 cells")`. A cell is one repeat."""
    cells = run.repeats if any(not cell.valid for cell in run.repeats) else run.pooled
    return sum(not cell.valid for cell in cells), plural(len(cells), "cell")


def sent_late(summary: OnlineSummary) -> bool:
    """Whether the client or a node did, or had too much to do."""
    return not {"late", "busy"}.isdisjoint(summary.invalid_kinds)


def _busy(run: OnlineRun, wrong: Sequence[OnlineSummary]) -> str:
    """What else ran in cells that were sent late, at most."""
    late = {(summary.label, summary.load) for summary in wrong if sent_late(summary)}
    found = [
        (machine.foreign_cores_mean, kept)
        for group in run.groups
        if (group.label, group.load) in late and group.engine != RUNNING_SERVER
        for machine in machine_loads(group, run.results.machines)
        if (kept := kept_busy(machine))
    ]
    return f", while other programs {max(found)[1]}" if found else ""


def _hint(wrong: Sequence[OnlineSummary], kinds: Sequence[InvalidKind], busy: str) -> str:
    """What to do about the first cause."""
    match kinds[:1]:
        case ["late"]:
            if busy:
                return "Stop them and run again."
            if all(OPENING in reason for summary in wrong for reason in summary.invalid_reasons):
                return "See whether the server closes connections, or is far away."
            return "Use a lighter load, or leave the client a core of its own."
        case ["busy"]:
            return f"Run again with --clients {max(summary.clients_needed or 2 for summary in wrong)}."
    return "The warnings say more."
