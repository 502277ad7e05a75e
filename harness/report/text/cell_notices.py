"""What was noticed of cells, for the reader of a run: one notice for each engine and kind."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.metrics.validity import BRIEF, MIN_ROUNDS, too_brief
from harness.report.text.load_words import where
from harness.report.text.notice import Notice, Topic, sentence
from harness.report.text.numbers import as_ranges, few, percent, plural, wording
from harness.runs.reader import OnlineRun
from harness.schema.cell_notice import CellNotice
from harness.schema.load import from_light_to_heavy

#: What to do about a closed loop of few requests.
MORE_ROUNDS = "--rounds 10 sends ten for each in flight."

_REPEAT = re.compile(r"repeat \d+: ")

#: Of the notices of cells, by kind; in this order.
TITLES: dict[str, str] = {
    "accuracy": "{label} scores below another engine.",
    "behind": "{label} did not keep up with the load.",
    "growing": "More and more requests of {label} were in flight.",
    "disturbed": "The machine was disturbed while {label} was measured.",
    "throttled": "A GPU lowered its clocks while {label} was measured.",
    "chunks": "Text of {label} came in large chunks.",
    "cached": "{label} may have answered from a cache.",
    "hidden": "{label} keeps reasoning to itself.",
    "inferred": "ITL of {label} is inferred.",
    "drift": "{label} changed while it was measured.",
    "repeats": "The repeats of {label} disagree.",
    "late": "The client sent a request to {label} late.",
    "order": "{label} was slower at a lighter load.",
}
TOPICS: dict[str, Topic] = {
    "behind": "behind",
    "growing": "behind",
    "accuracy": "answers",
    "disturbed": "machine",
    "throttled": "clocks",
    **dict.fromkeys(("chunks", "hidden", "inferred", "late", "order"), "routine"),
}
#: Said once of all engines where all have it.
OF_THE_MACHINE = ("disturbed", "throttled")


def of_cells(run: OnlineRun, kinds: Sequence[str] = tuple(TITLES)) -> list[Notice]:
    """What was noticed of cells: one notice for each engine and kind, besides what `of_short_loops` says."""
    found: dict[tuple[str, str], list[str]] = {}
    for summary in run.pooled:
        for kind in dict.fromkeys(notice.kind for notice in summary.notices if notice.kind in kinds):
            for said in of_repeats([notice.text for notice in summary.notices if notice.kind == kind]):
                text = f"{where(summary.load)}, {said}"
                found.setdefault((kind, summary.label), []).append(sentence(text[:1].upper() + text[1:]))
    labels = {summary.label for summary in run.pooled}
    for alike in OF_THE_MACHINE:
        if len(labels) > 1 and all((alike, label) in found for label in labels):
            found = {key: details for key, details in found.items() if key[0] != alike}
            found[alike, "every engine"] = _of_all_engines(run, alike)
    return [
        Notice("load", TITLES[kind].format(label=label), " ".join(details), TOPICS.get(kind, "other"))
        for (kind, label), details in sorted(found.items(), key=lambda entry: kinds.index(entry[0][0]))
    ]


def slower_loads(run: OnlineRun) -> list[Notice]:
    """Engines that were slower at a lighter load, and why where the raw times show it."""
    return of_cells(run, ["order"])


def _of_all_engines(run: OnlineRun, kind: str) -> list[str]:
    """What was noticed of cells: a sentence for each load and wording, with the range of its numbers."""
    engines, details = {summary.label for summary in run.pooled}, []
    for load in from_light_to_heavy({summary.load for summary in run.pooled}):
        there = [summary for summary in run.pooled if summary.load == load]
        count = sum(cell.load == load for cell in run.repeats)
        alike: dict[tuple[str, ...], list[tuple[str, str]]] = {}
        for label, text in ((s.label, n.text) for s in there for n in s.notices if n.kind == kind):
            alike.setdefault(wording(_REPEAT.sub("", text, count=1)), []).append((label, text))
        for found in alike.values():
            texts, labels = [text for _, text in found], list(dict.fromkeys(label for label, _ in found))
            of_cells = count == len(there) or all(_REPEAT.match(text) for text in texts)
            cells = f", in {len(texts)} of {plural(count, 'cell')}" if of_cells else ""
            who = f" ({few(labels)})" if set(labels) != engines else ""
            said = as_ranges([_REPEAT.sub("", text, count=1) for text in texts])
            place = where(load)
            details.append(sentence(f"{place[:1].upper()}{place[1:]}{cells}{who}: {said}"))
    return details


def of_repeats(texts: list[str]) -> list[str]:
    """`repeat 1: took 3 s` and `repeat 2: took 5 s` as `2 repeats: took 3 to 5 s`."""
    alike: dict[tuple[str, ...] | str, list[str]] = {}
    for text in texts:
        said = _REPEAT.sub("", text, count=1)
        alike.setdefault(text if said == text else wording(said), []).append(text)
    return [
        same[0]
        if len(same) == 1 or isinstance(kind, str)
        else f"{len(same)} repeats: {as_ranges([_REPEAT.sub('', text, count=1) for text in same])}"
        for kind, same in alike.items()
    ]


def of_short_loops(run: OnlineRun) -> list[Notice]:
    """The cells' own notices of loads that are too short, each load once: all engines had the same."""
    noticed = (notice for summary in run.pooled for notice in summary.notices if _few(notice))
    found = dict.fromkeys(sentence(notice.text) for notice in noticed)
    title = f"A closed loop has fewer than {MIN_ROUNDS} requests for each in flight."
    return [Notice("load", title, f"{' '.join(found)} {MORE_ROUNDS}", "length")] if found else []


def _few(notice: CellNotice) -> bool:
    return notice.kind == "short" and not notice.text.startswith(BRIEF)


def of_short_cells(run: OnlineRun) -> list[Notice]:
    """The shortest cell, where cells are too short."""
    found = [
        (summary.duration_s, summary, notice.text)
        for summary in run.pooled
        for notice in summary.notices
        if notice.kind == "short" and not _few(notice)
    ]
    if not found:
        return []
    _, summary, text = min(found, key=lambda entry: entry[0])
    wanted = run.meta.settings.measured_s
    count = sum(too_brief(cell.duration_s, wanted) is not None for cell in run.repeats)
    title = f"{count} of {plural(len(run.repeats), 'cell')} {'is' if count == 1 else 'are'} short."
    detail = sentence(f"{summary.label} {where(summary.load)}: {text}")
    return [Notice("load", title, detail, "length")]


def of_unreported(run: OnlineRun) -> list[Notice]:
    """What servers do not report, once: it is alike in all cells."""
    found = {
        summary.label: notice.text
        for summary in run.repeats
        for notice in summary.notices
        if notice.kind == "unreported"
    }
    if not found:
        return []
    do = "does" if len(found) == 1 else "do"
    title = f"{few(list(found))} {do} not report everything that is checked."
    text = next(iter(found.values()))
    return [Notice("load", title, sentence(text[:1].upper() + text[1:]), "other")]


def of_window(run: OnlineRun) -> list[Notice]:
    """What a window left out."""
    cut = [summary for summary in run.repeats if summary.window_s is not None]
    if not cut:
        return []
    kind = "the steady state" if run.meta.settings.steady_state else "a window"
    sent, left_out = sum(summary.num_requests for summary in cut), sum(summary.left_out for summary in cut)
    share = f"{left_out:,} of {sent + left_out:,} requests ({percent(left_out, sent + left_out)})"
    detail = f"{share} were sent before or after it and are not in the latencies."
    return [Notice("load", f"Only {kind} of each cell is measured.", detail, "length")]
