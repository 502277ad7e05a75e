"""What a reader must know before believing a number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.metrics.notices import begun
from harness.report.best import differs
from harness.report.text.cell_notices import (
    of_cells,
    of_short_cells,
    of_short_loops,
    of_unreported,
    of_window,
)
from harness.report.text.code_notices import of_code
from harness.report.text.heading import fitted
from harness.report.text.load_words import where
from harness.report.text.notice import Notice, sentence
from harness.report.text.numbers import few, plural, several
from harness.report.text.provenance import fact_text
from harness.report.text.unfinished import each_once, lacking, unfinished
from harness.runs.reader import OnlineRun, Run
from harness.runs.warmup_hints import warmup_hint
from harness.schema.engine_ref import RUNNING_SERVER
from harness.schema.online_summary import OnlineSummary
from harness.schema.repeat_number import repeat_text
from harness.schema.results import Skipped

_KINDS = ("invalid", "skipped", "load")
#: Of every run of bench offline.
_UNCHECKED = Notice(
    "skipped",
    "The answers were not checked.",
    "bench offline compares no answers. bench online with the same engines and model does.",
    "answers",
)


def notices(run: Run) -> list[Notice]:
    """Invalid cells first, then engines that are absent, then what was done to the load."""
    if not run.has_results:
        found = [_skipped([fault]) for fault in each_once(run.results.skipped)]
        return [*found, *_fitting(run), *of_code(run)]
    found = [*_disagreements(run), *_invalid(run), *_unfinished(run)]
    found += map(_skipped, _alike(run.results.skipped))
    found += [*_fitting(run), *_failed_after(run)]
    found += [_UNCHECKED] if run.is_batch else [*_unfair(run), *_noise(run), *_sent_again(run)]
    found += [*of_short_loops(run), *of_short_cells(run)]
    found += [*of_cells(run), *of_unreported(run), *of_window(run)]
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
    hint = f" To include it: {sentence(fault.hint)}" if fault.hint else ""
    detail = f"{sentence(fault.reason)}{hint}"
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
        said = sentence("; ".join(filter(None, (fault.reason, fault.hint))))
        detail = f"{said} {again}" if fault.what else said
        title = f"{lacking(fault)}, {repeat_text(fault.repeat)}:"
        found.append(Notice("skipped", title, detail, "answers" if fault.what else "other"))
    return found


def _unfair(run: OnlineRun) -> list[Notice]:
    """Wrong answers, answers that were not checked, and settings that are not equal."""
    found = []
    if run.results.answers is not None:
        for label, reason in run.results.answers.wrong.items():
            found.append(Notice("invalid", f"{label} answers wrongly.", sentence(reason), "answers"))
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
        found.append(Notice("skipped", title, sentence("; ".join(parts)), "settings"))
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
    return [Notice("skipped", title, sentence(answers.rule), "answers")]


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
        text = " ".join(sentence(detail[:1].upper() + detail[1:]) for detail in details)
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
    counts = [(begun(group), group) for group in run.groups if group.repeat is not None]
    most, group = max(counts, key=lambda entry: entry[0], default=(0, None))
    if group is None or most <= trace.prompts:
        return []
    what = "conversations" if run.meta.settings.turns is not None else "prompts"
    detail = (
        f"{trace.name} has {trace.prompts:,} {what} that fit, and {group.label} was sent {most:,} "
        f"{where(group.load)}. A prefix cache answers faster what it has seen. Use a larger dataset, or send "
        "less."
    )
    return [Notice("load", f"Some {what} were sent more than once.", detail, "trace")]
