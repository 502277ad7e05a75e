"""What a reader must know before believing a number."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from harness.metrics.samples import Group
from harness.metrics.validity import BRIEF, MIN_ROUNDS, too_brief
from harness.report.best import differs
from harness.report.text.code_notices import of_code
from harness.report.text.heading import fitted
from harness.report.text.load_words import where
from harness.report.text.notice import Notice, Topic
from harness.report.text.numbers import as_ranges, few, percent, plural, several, wording
from harness.report.text.provenance import fact_text
from harness.report.text.unfinished import each_once, lacking, unfinished
from harness.runs.reader import OfflineRun, OnlineRun, Run
from harness.runs.warmup_hints import warmup_hint
from harness.schema.cell_notice import CellNotice
from harness.schema.engine_ref import RUNNING_SERVER
from harness.schema.load import from_light_to_heavy
from harness.schema.online_summary import OnlineSummary
from harness.schema.repeat_number import repeat_text
from harness.schema.results import Skipped

#: What to do about a closed loop of few requests.
MORE_ROUNDS = "--rounds 10 sends ten for each in flight."

_KINDS = ("invalid", "skipped", "load")
_REPEAT = re.compile(r"repeat \d+: ")

#: Of the notices of cells, by kind; in this order.
_TITLES: dict[str, str] = {
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
_TOPICS: dict[str, Topic] = {
    "behind": "behind",
    "growing": "behind",
    "accuracy": "answers",
    "disturbed": "machine",
    "throttled": "clocks",
    **dict.fromkeys(("chunks", "hidden", "inferred", "late", "order"), "routine"),
}
#: Said once of all engines where all have it.
_OF_THE_MACHINE = ("disturbed", "throttled")


def notices(run: Run) -> list[Notice]:
    """Invalid cells first, then engines that are absent, then what was done to the load."""
    if not run.has_results:
        found = [_skipped([fault]) for fault in each_once(run.results.skipped)]
        return [*found, *_fitting(run), *of_code(run)]
    found = [*_disagreements(run), *_invalid(run)] if isinstance(run, OnlineRun) else []
    found += _unfinished(run)
    found += map(_skipped, _alike(run.results.skipped))
    found += _fitting(run)
    if isinstance(run, OnlineRun):
        found += [
            *_failed_after(run),
            *_unfair(run),
            *_noise(run),
            *_sent_again(run),
            *_rounds(run),
            *_brief(run),
        ]
        found += [*_cells(run), *_unreported(run), *_window(run)]
    else:
        found += [*_brief_batches(run), *_machine_of_batches(run)]
    found += of_code(run)
    return sorted(found, key=lambda notice: _KINDS.index(notice.kind))


def _alike(skipped: Iterable[Skipped]) -> list[list[Skipped]]:
    """Together what has the same label and reason."""
    found: dict[tuple[str, str], list[Skipped]] = {}
    for fault in skipped:
        found.setdefault((fault.label, fault.said), []).append(fault)
    return list(found.values())


def _skipped(faults: Sequence[Skipped]) -> Notice:
    """One engine, at one place or at several for the same reason."""
    fault = faults[0]
    place = "" if fault.load is None else f" {where(fault.load)}"
    if len(faults) == 1:
        place += "" if fault.repeat is None else f", {repeat_text(fault.repeat)}"
    elif len({each.load for each in faults}) == 1:
        place += f" in {plural(len(faults), 'repeat')}"
    else:
        place = f" in {plural(len(faults), 'cell')}"
    hint = f" To include it: {_sentence(fault.hint)}" if fault.hint else ""
    detail = f"{_sentence(fault.reason)}{hint}"
    return Notice("skipped", f"{fault.label} was skipped{place}:", detail, "engines")


def _disagreements(run: OnlineRun) -> list[Notice]:
    """Stored results that the raw times do not give: another version made them, or a file was changed."""
    found = run.disagreements
    if not found:
        return []
    detail = (
        f"{plural(len(found), 'value')} of online_results.json differ, first {found[0]}. "
        "Everything shown here is computed from the raw times."
    )
    return [Notice("invalid", "The stored results are not those of the raw times.", detail, "other")]


def _unfinished(run: Run) -> list[Notice]:
    said = unfinished(run)
    return [] if said is None else [Notice("skipped", *said, "rest")]


def _failed_after(run: OnlineRun) -> list[Notice]:
    """What failed after the cells of an engine."""
    again = f"bench {run.meta.subcommand} --resume, with the run's folder, tries it again."
    found = []
    for fault in (unasked for unasked in run.meta.unasked if unasked.reason):
        said = _sentence("; ".join(filter(None, (fault.reason, fault.hint))))
        detail = f"{said} {again}" if fault.what else said
        title = f"{lacking(fault)}, {repeat_text(fault.repeat)}:"
        found.append(Notice("skipped", title, detail, "answers" if fault.what else "other"))
    return found


def _unfair(run: OnlineRun) -> list[Notice]:
    """Wrong answers, answers that were not checked, and settings that are not equal."""
    found = []
    if run.results.answers is not None:
        for label, reason in run.results.answers.wrong.items():
            found.append(Notice("invalid", f"{label} answers wrongly.", _sentence(reason), "answers"))
    found += [*_unchecked(run), *_unlisted(run)]
    if not run.meta.environment.get("calibration"):
        why = "" if run.meta.settings.calibrate else "--no-calibrate was given. "
        detail = f"{why}Whether a load was too much for the client is not known."
        found.append(Notice("load", "The client was not calibrated.", detail, "client"))
    ledger = None if run.meta.tune is not None else run.results.ledger  # a tuning makes them unequal
    if ledger is not None and (rows := ledger.unequal):
        parts = []
        for row in rows:
            text = (
                f"{label} {fact_text(fact.value)}" for label, fact in row.facts.items() if fact is not None
            )
            parts.append(f"{row.name}: {', '.join(text)}")
        title = (
            f"{plural(len(rows), 'setting')} of the engines {'is' if len(rows) == 1 else 'are'} not equal."
        )
        found.append(Notice("skipped", title, _sentence("; ".join(parts)), "settings"))
    return found


def _unchecked(run: OnlineRun) -> list[Notice]:
    """A fast engine may be a wrong one."""
    answers = run.results.answers
    if answers is None:
        why = "" if run.meta.settings.check_answers else "--no-check-answers was given. "
        detail = f"{why}Whether the engines computed the same is not known."
        return [Notice("skipped", "The answers were not checked.", detail, "answers")]
    unknown = [check.label for check in answers.checks if check.verdict == "unknown"]
    if not unknown:
        return []
    title = f"The answers of {several(unknown)} could not be checked."
    return [Notice("skipped", title, _sentence(answers.rule), "answers")]


def _unlisted(run: OnlineRun) -> list[Notice]:
    """A server that answers for a model that it does not list may answer with another one."""
    found = []
    for launch in run.meta.launches:
        if isinstance(listed := launch.settings.get("lists_instead"), list):
            title = f"The server of {launch.label} does not list the model that was asked for."
            names = few([str(name) for name in listed])
            asked = f"It was asked for {launch.settings['model']} and lists {names}"
            detail = f"{asked}: it may answer with another model."
            found.append(Notice("skipped", title, detail, "answers"))
    return found


def _noise(run: OnlineRun) -> list[Notice]:
    """An engine that differs from itself."""
    if not run.meta.settings.aa:
        return []
    wrong = {
        comparison.a.removesuffix(" (A)")
        for comparison in run.results.comparisons
        if comparison.a.endswith(" (A)")
        and comparison.b == f"{comparison.a.removesuffix(' (A)')} (B)"
        and differs(comparison)
    }
    detail = "Differences of this size between engines mean nothing on this machine."
    return [Notice("invalid", f"{label} differs from itself.", detail, "other") for label in sorted(wrong)]


def _invalid(run: OnlineRun) -> list[Notice]:
    """One an engine, however many of its loads are invalid."""
    wrong: dict[str, list[OnlineSummary]] = {}
    for summary in run.pooled:
        if not summary.valid:
            wrong.setdefault(summary.label, []).append(summary)
    found = []
    for label, summaries in wrong.items():
        single = len(summaries) == 1
        count = max(len(summaries), sum(not cell.valid for cell in run.repeats if cell.label == label))
        title = f"{label} {where(summaries[0].load)} is" if single else f"{count} cells of {label} are"
        details = [_why(summary) + _first_failure(run, summary) for summary in summaries]
        if not single:
            details = [
                f"{where(summary.load)}, {why}" for summary, why in zip(summaries, details, strict=True)
            ]
        text = " ".join(_sentence(detail[:1].upper() + detail[1:]) for detail in details)
        detail = f"{text} {'It is' if single else 'They are'} shown, marked as invalid, and not compared."
        found.append(Notice("invalid", f"{title} invalid.", detail))
    return found


def _why(summary: OnlineSummary) -> str:
    kinds = ", ".join(f"{kind} {count}" for kind, count in summary.errors.items())
    return "; ".join(summary.invalid_reasons) + (f" ({kinds})" if kinds else "")


def _first_failure(run: OnlineRun, summary: OnlineSummary) -> str:
    """What was said of the first request that failed, and what to do about it."""
    for group in run.groups:
        if (group.label, group.load) == (summary.label, summary.load):
            requests = (group.whole or group).requests
            if (failed := requests["error"].notna().to_numpy()).any():
                first = requests.iloc[int(failed.argmax())].to_dict()
                hint, _ = warmup_hint(first, started=group.engine != RUNNING_SERVER)
                said = [text for text in (first["error_detail"], hint) if isinstance(text, str)]
                return f"; first {first['error']}: {'; '.join(said)}"
    return ""


def _fitting(run: Run) -> list[Notice]:
    text = fitted(run.meta.trace) if run.meta.trace else ""
    title = "The trace was fitted to the model's context."
    return [Notice("load", title, f"With {text}.", "trace")] if text else []


def _sent_again(run: OnlineRun) -> list[Notice]:
    """A dataset that has fewer prompts than a cell sent."""
    trace = run.meta.trace
    if trace is None or trace.prompts is None:
        return []
    begun = [(_begun(group), group) for group in run.groups if group.repeat is not None]
    most, group = max(begun, key=lambda entry: entry[0], default=(0, None))
    if group is None or most <= trace.prompts:
        return []
    what = "conversations" if run.meta.settings.turns is not None else "prompts"
    detail = (
        f"{trace.name} has {trace.prompts:,} {what} that fit, and {group.label} was sent {most:,} "
        f"{where(group.load)}. A prefix cache answers faster what it has seen. Use a larger dataset, or send "
        "less."
    )
    return [Notice("load", f"Some {what} were sent more than once.", detail, "trace")]


def _begun(group: Group) -> int:
    """The prompts of a repeat, or its conversations."""
    requests = (group.whole or group).requests
    sessions = requests["session"].dropna().nunique()
    return int(sessions) or len(requests)


def _rounds(run: OnlineRun) -> list[Notice]:
    """The cells' own notices of loads that are too short, each load once: all engines had the same."""
    noticed = (notice for summary in run.pooled for notice in summary.notices if _few(notice))
    found = dict.fromkeys(_sentence(notice.text) for notice in noticed)
    title = f"A closed loop has fewer than {MIN_ROUNDS} requests for each in flight."
    return [Notice("load", title, f"{' '.join(found)} {MORE_ROUNDS}", "length")] if found else []


def _few(notice: CellNotice) -> bool:
    return notice.kind == "short" and not notice.text.startswith(BRIEF)


def _brief(run: OnlineRun) -> list[Notice]:
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
    detail = _sentence(f"{summary.label} {where(summary.load)}: {text}")
    return [Notice("load", title, detail, "length")]


def _brief_batches(run: OfflineRun) -> list[Notice]:
    """The shortest measurement of a batch, where they are too short."""
    results = run.results.results
    found = [
        (result.total_s * result.batches, result, notice.text)
        for result in results
        for notice in result.notices
        if notice.kind == "short"
    ]
    if not found:
        return []
    _, result, text = min(found, key=lambda entry: entry[0])
    title = (
        f"{len(found)} of {plural(len(results), 'measurement')} {'is' if len(found) == 1 else 'are'} short."
    )
    detail = _sentence(f"{result.label}, {repeat_text(result.repeat)}: {text}")
    return [Notice("load", title, detail, "length")]


def _machine_of_batches(run: OfflineRun) -> list[Notice]:
    """What else used the machine, or slowed it down, while an engine was measured."""
    found: dict[tuple[str, str], list[str]] = {}
    for result in run.results.results:
        for notice in result.notices:
            if notice.kind in _OF_THE_MACHINE:
                texts = found.setdefault((notice.kind, result.label), [])
                texts.append(f"{repeat_text(result.repeat)}: {notice.text}")
    return [
        Notice(
            "load",
            _TITLES[kind].format(label=label),
            " ".join(_sentence(said[:1].upper() + said[1:]) for said in of_repeats(texts)),
            _TOPICS[kind],
        )
        for (kind, label), texts in sorted(found.items())
    ]


def slower_loads(run: OnlineRun) -> list[Notice]:
    """Engines that were slower at a lighter load, and why where the raw times show it."""
    return _cells(run, ["order"])


def _cells(run: OnlineRun, kinds: Sequence[str] = tuple(_TITLES)) -> list[Notice]:
    """What was noticed of cells: one notice for each engine and kind, besides what `_rounds` says."""
    found: dict[tuple[str, str], list[str]] = {}
    for summary in run.pooled:
        for kind in dict.fromkeys(notice.kind for notice in summary.notices if notice.kind in kinds):
            for said in of_repeats([notice.text for notice in summary.notices if notice.kind == kind]):
                text = f"{where(summary.load)}, {said}"
                found.setdefault((kind, summary.label), []).append(_sentence(text[:1].upper() + text[1:]))
    labels = {summary.label for summary in run.pooled}
    for alike in _OF_THE_MACHINE:
        if len(labels) > 1 and all((alike, label) in found for label in labels):
            found = {key: details for key, details in found.items() if key[0] != alike}
            found[alike, "every engine"] = _of_all_engines(run, alike)
    return [
        Notice("load", _TITLES[kind].format(label=label), " ".join(details), _TOPICS.get(kind, "other"))
        for (kind, label), details in sorted(found.items(), key=lambda entry: kinds.index(entry[0][0]))
    ]


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
            details.append(_sentence(f"{place[:1].upper()}{place[1:]}{cells}{who}: {said}"))
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


def _unreported(run: OnlineRun) -> list[Notice]:
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
    return [Notice("load", title, _sentence(text[:1].upper() + text[1:]), "other")]


def _window(run: OnlineRun) -> list[Notice]:
    """What a window left out."""
    cut = [summary for summary in run.repeats if summary.window_s is not None]
    if not cut:
        return []
    kind = "the steady state" if run.meta.settings.steady_state else "a window"
    sent, left_out = sum(summary.num_requests for summary in cut), sum(summary.left_out for summary in cut)
    share = f"{left_out:,} of {sent + left_out:,} requests ({percent(left_out, sent + left_out)})"
    detail = f"{share} were sent before or after it and are not in the latencies."
    return [Notice("load", f"Only {kind} of each cell is measured.", detail, "length")]


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."
