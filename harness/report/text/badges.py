"""What makes a run believable, in one word each; every notice is folded into the badge of its topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.report.text.heading import largest_change, repeat_counts, repeats_text
from harness.report.text.invalid import invalid_count, sent_late
from harness.report.text.notice import Notice, Topic
from harness.report.text.numbers import few, plural
from harness.report.text.provenance import assumed_of_rates
from harness.report.text.run_notices import notices
from harness.runs.reader import OnlineRun, Run
from harness.schema.search import SearchResults

#: Repeats from which on their spread is known well enough.
ENOUGH_REPEATS = 5
#: Limits and ways of computing of which each engine has its own defaults; others are the same by request.
_DEFAULTS = {"kv_tokens", "max_batch", "max_batched_tokens", "chunked_prefill", "graphs"}
#: Code that is in no commit.
UNCOMMITTED = "uncommitted code"
#: Starts of a server from which on a search sees how they differ.
ENOUGH_STARTS = 2
_ONE_START = (
    "One start does not show how much starts of a server differ. --cells-per-start says after how many cells "
    "it is started again."
)
_ONE_REPEAT = (
    "Intervals of one repeat say how well this run knows its percentiles, and nothing about the next run. "
    "--repeats 5 measures the spread."
)
_ONE_BATCH = (
    f"Intervals of one repeat assume that repeats differ by {assumed_of_rates}. --repeats 5 measures it."
)


#: From what is as it should be to what makes a number worthless; a note is about what is usual.
Kind = Literal["good", "note", "warn", "bad"]


@dataclass(frozen=True)
class Badge:
    """`text` is shown, `notices` where a reader opens it."""

    kind: Kind
    text: str
    notices: Sequence[Notice] = ()

    @property
    def sign(self) -> str:
        """The kind as a character."""
        return {"good": "✓", "note": "•", "warn": "⚠", "bad": "✗"}[self.kind]


def badges(run: Run) -> list[Badge]:
    """Those that say no first; each notice of the run is in exactly one."""
    by: dict[Topic, list[Notice]] = {}
    for notice in notices(run):
        by.setdefault(notice.topic, []).append(notice)
    found = []
    if run.has_results:
        found = _online(run, by) if not run.is_batch else _offline(run, by)
    if rest := by.get("rest"):
        found.insert(0, Badge("warn", "interrupted", rest))  # what is missing outweighs the rest
    if skipped := by.get("engines"):
        found.append(Badge("warn", f"{len(skipped)} skipped", skipped))
    if code := by.get("code"):
        found.append(Badge("warn", UNCOMMITTED, code))
    if (fitted := by.get("trace")) and run.meta.trace:
        found.append(Badge("note", f"trace: {largest_change(run.meta.trace)}", fitted))
    if clocks := by.get("clocks"):
        by_power = all(" lowered its clocks: power cap in " in notice.detail for notice in clocks)
        found.append(
            Badge("note", "GPU power-capped", clocks)
            if by_power
            else Badge("warn", "GPU clocks lowered", clocks)
        )
    if disturbed := by.get("machine"):
        found.append(Badge("warn", "machine disturbed", disturbed))
    if short := by.get("length"):
        found.append(Badge("note", "short or cut cells", short))
    grave = by.get("other", [])
    if others := [*grave, *by.get("routine", ())]:
        worst: Kind = "bad" if any(n.kind == "invalid" for n in grave) else "warn" if grave else "note"
        found.append(Badge(worst, plural(len(others), "more notice"), others))
    order = ("bad", "warn", "note", "good")
    return sorted(found, key=lambda badge: order.index(badge.kind))


def _online(run: OnlineRun, by: dict[Topic, list[Notice]]) -> list[Badge]:
    invalid = [summary for summary in run.pooled if not summary.valid]
    found = [
        Badge("bad", "{} of {} invalid".format(*invalid_count(run)), by.get("cells", ()))
        if invalid
        else Badge("good", "all cells valid", by.get("cells", ())),
        _client(late=any(map(sent_late, invalid)), about=by.get("client", ())),
        _answers(run, by.get("answers", ())),
        _online_repeats(run) if run.results.search is None else _starts(run.results.search),
    ]
    if run.meta.tune is None and run.results.ledger is not None and len(run.results.ledger.labels) > 1:
        rows = run.results.ledger.unequal
        unequal = by.get("settings", ())
        found.append(
            Badge(
                "note" if {row.key for row in rows} <= _DEFAULTS else "warn",
                f"{plural(len(rows), 'setting')} differ{'s' * (len(rows) == 1)}",
                unequal,
            )
            if rows
            else Badge("good", "equal settings")
        )
    if behind := by.get("behind"):
        found.append(Badge("warn", "not all kept up", behind))
    return found


def _offline(run: Run, by: dict[Topic, list[Notice]]) -> list[Badge]:
    counts = Counter(result.label for result in run.results.results)
    few_of = [label for label, count in counts.items() if count == min(counts.values())]
    return [
        _repeats(min(counts.values()), max(counts.values()), few_of, _ONE_BATCH),
        Badge("warn", "answers unchecked", by["answers"]),
    ]


def _client(*, late: bool, about: Sequence[Notice]) -> Badge:
    if late:
        return Badge("bad", "client late", about)
    return (
        Badge("note", "client on time, not calibrated", about) if about else Badge("good", "client on time")
    )


def _answers(run: OnlineRun, about: Sequence[Notice]) -> Badge:
    checks = run.results.answers
    if checks is not None and checks.wrong:
        return Badge("bad", "wrong answers", about)
    if checks is None or any(check.verdict == "unknown" for check in checks.checks):
        return Badge("warn", "answers unchecked", about)
    text = f"answers same, {plural(len(about), 'notice')}" if about else "answers same"
    return Badge("warn" if about else "good", text, about)


def _starts(search: SearchResults) -> Badge:
    """Of a search, which has cells at loads of its own in place of repeats."""
    counts = [found.starts for found in search.engines if found.trials]
    least, most = min(counts, default=0), max(counts, default=0)
    said = plural(most, "start") if least == most else f"{least} to {plural(most, 'start')}"
    if least >= ENOUGH_STARTS:
        return Badge("good", said)
    return Badge("warn", said, [Notice("load", f"{said}; {ENOUGH_STARTS} or more are better.", _ONE_START)])


def _online_repeats(run: OnlineRun) -> Badge:
    least, most = repeat_counts(run)
    counts = Counter((cell.label, cell.load) for cell in run.repeats)
    labels = list(dict.fromkeys(label for (label, _), count in counts.items() if count == least))
    return _repeats(least, most, labels, _ONE_REPEAT, " at some load")


def _repeats(least: int, most: int, of_least: Sequence[str], of_one: str, place: str = "") -> Badge:
    """`of_least`: the engines that have the fewest; `of_one`: what intervals of one repeat are."""
    said = repeats_text(least, most)
    if least >= ENOUGH_REPEATS:
        return Badge("good", said)
    title = f"{said}; {ENOUGH_REPEATS} or more are better."
    kind: Kind = "warn" if least < 3 else "note"
    details = [of_one] if least < 2 else []
    if least < most:
        have = "has" if len(of_least) == 1 else "have"
        details.insert(0, f"{few(of_least)} {have} {least}{place}.")
    return Badge(kind, said, [Notice("load", title, " ".join(details))])
