"""How many cells are invalid, and why, in one sentence for the head of a verdict."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from harness.metrics.validity import SENT_LATE, TOO_BUSY, WRONG
from harness.report.text.numbers import plural, several
from harness.runs.reader import OnlineRun
from harness.schema.online_summary import OnlineSummary

#: What a reason has in it, and what is said of it.
_CAUSES = {
    SENT_LATE: "the client sent late",
    TOO_BUSY: "a client process had too much to do",
    "no request succeeded": "no request succeeded",
    "requests failed": "requests failed",
    WRONG: "answers are wrong",
    "accuracy task": "an engine scores below another",
    "no request was sent": "no request was sent in the part that is measured",
}
#: Causes that are named.
_MOST = 2
_FOREIGN = re.compile(r"other processes kept ([\d.]+) of (\d+) cores busy")
_CLIENTS = re.compile(r"--clients (\d+)")


def invalid_cells(run: OnlineRun) -> str:
    """`4 of 6 cells are invalid: the client sent late. Use a lighter load …`; empty where all are valid."""
    wrong = [summary for summary in run.pooled if not summary.valid]
    if not wrong:
        return ""
    counts = Counter(cause for summary in wrong for cause in _causes(summary))
    causes = [cause for cause, _ in counts.most_common(_MOST)]
    busy = _busy(wrong) if _CAUSES[SENT_LATE] in causes else ""
    said = [f"{cause}{busy}" if cause == _CAUSES[SENT_LATE] else cause for cause in causes]
    count = f"{len(wrong)} of {plural(len(run.pooled), 'cell')} {'is' if len(wrong) == 1 else 'are'}"
    why = several(said) if said else "the warnings say why"
    return f"{count} invalid: {why}. {_hint(wrong, causes, busy)}"


def sent_late(summary: OnlineSummary) -> bool:
    """Whether the client or a node did, or had too much to do."""
    return any(words in reason for reason in summary.invalid_reasons for words in (SENT_LATE, TOO_BUSY))


def _causes(summary: OnlineSummary) -> set[str]:
    return {
        next((said for words, said in _CAUSES.items() if words in reason), "the warnings say why")
        for reason in summary.invalid_reasons
    }


def _busy(wrong: Sequence[OnlineSummary]) -> str:
    """What else ran in cells that were sent late, at most."""
    found = [
        (float(seen[1]), seen[0].removeprefix("other processes "))
        for summary in wrong
        if sent_late(summary)
        for notice in summary.notices
        if (seen := _FOREIGN.search(notice.text))
    ]
    return f", while other programs {max(found)[1]}" if found else ""


def _hint(wrong: Sequence[OnlineSummary], causes: Sequence[str], busy: str) -> str:
    """What to do about the first cause."""
    match causes[:1]:
        case [cause] if cause == _CAUSES[SENT_LATE]:
            if busy:
                return "Stop them and run again."
            return "Use a lighter load, or leave the client a core of its own."
        case [cause] if cause == _CAUSES[TOO_BUSY]:
            reasons = " ".join(reason for summary in wrong for reason in summary.invalid_reasons)
            needed = max(map(int, _CLIENTS.findall(reasons)), default=2)
            return f"Run again with --clients {needed}."
    return "The warnings say more."
