"""Facts of a whole run, its notices, and its badges: what a reader must know before believing a number.

The facts of cells are stated in `harness/metrics`; the words of all are in `wording.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, cast

import numpy as np
from pydantic import JsonValue

from harness.engines.selection import make_engine_variants
from harness.metrics.notices import begun, hidden_cache
from harness.metrics.power import decided, of_cells
from harness.metrics.rankings import REAL, shown_load
from harness.report.text.heading import repeat_counts, repeats_text
from harness.report.text.numbers import few, plural, several
from harness.report.text.provenance import fact_text
from harness.report.wording import CHECKS, Notice, Topic, notices_of
from harness.runs.cell_runner import warmup_hint
from harness.runs.reader import Run
from harness.schema.facts import Fact, Scope, Value
from harness.schema.fairness import PROMPTS_AGAIN, LedgerRow
from harness.schema.load import load_text
from harness.schema.run_info import LaunchRecord
from harness.schema.setting_types import RUNNING_SERVER
from harness.schema.settings import UNKNOWN_CONTEXT
from harness.telemetry.revision import DIRTY

#: Repeats, and starts of a server in a search, from which on their spread is known well enough.
ENOUGH_REPEATS, ENOUGH_STARTS = 5, 2

#: Colour of a badge: all is well; worth knowing, and usual; a number may mislead; a number is worthless.
BadgeKind = Literal["good", "note", "warn", "bad"]
_BADGE_KINDS: dict[str, BadgeKind] = {"invalid": "bad", "warning": "warn", "note": "note"}


@dataclass(frozen=True)
class Badge:
    """A few words on one topic, with the notices of it."""

    kind: BadgeKind
    text: str
    notices: tuple[Notice, ...] = ()

    @property
    def engines(self) -> list[str]:
        """Labels of the engines that it is about; none where a notice is about the whole run."""
        labels = dict.fromkeys(label for notice in self.notices for label in notice.engines)
        return list(labels) if all(notice.engines for notice in self.notices) else []

    @property
    def sign(self) -> str:
        """The kind as a character."""
        return {"good": "✓", "note": "•", "warn": "⚠", "bad": "✗"}[self.kind]


def notices(run: Run) -> list[Notice]:
    """Everything that a reader must know, the gravest first."""
    return notices_of(facts_of(run))


def facts_of(run: Run) -> list[Fact]:
    """State everything that a reader must know: facts of cells, then of the run."""
    stated = [*_of_code(run), *_skipped(run), *_fitted(run)]
    if not run.has_results:
        return stated
    of_cells = [_with_first_failure(run, fact) for cell in run.pooled for fact in cell.invalid_reasons]
    of_cells += [_with_first_failure(run, fact) for cell in run.pooled for fact in cell.notices]
    of_cells = [_with_error(run, fact) for fact in of_cells]
    stated += [*_alike_in_all_cells(of_cells), *_interrupted(run), *_few_repeats(run)]
    if run.is_batch:
        return [*stated, Fact.of("answers_unchecked", offline=True)]
    stated += [*_differing(run), *_hidden_caches(run), *_failed_after(run), *_unfair(run), *_noise(run)]
    stated += [*_measured_again(run), *_random_prompts(run), *_preset(run)]
    return [*stated, *_sent_again(run), *_window(run)]


def badges(run: Run) -> list[Badge]:
    """Badges of a run, the gravest first; each notice is in exactly one.

    A topic has one badge, with the text of its gravest notice, or one a text where its notices have nothing
    in common (`run`, `load`, `machine`, `other`). Topics without a notice may have a badge that says so.
    """
    by_badge: dict[str, list[Notice]] = {}
    gravest: dict[Topic, str] = {}
    for notice in notices(run):
        topic = notice.wording.topic
        joined = gravest.setdefault(topic, notice.wording.badge)
        apart = topic in ("run", "load", "machine", "other")  # a topic of several badges
        by_badge.setdefault(notice.wording.badge if apart else joined, []).append(notice)
    shown = [
        Badge(_BADGE_KINDS[together[0].severity], _badge_text(run, text), tuple(together))
        for text, together in by_badge.items()
    ]
    if run.has_results:
        good: list[tuple[Topic, str]] = [("repeats", _repeats_text(run))]
        if not run.is_batch:
            good += [("client", "client on time"), ("answers", "answers same")]
            if all(summary.valid for summary in run.pooled):
                good.append(("cells", "all cells valid"))
            if run.meta.tune is None and run.results.ledger and len(run.results.ledger.labels) > 1:
                good.append(("settings", "equal settings"))
        shown += [Badge("good", text) for topic, text in good if topic not in gravest]
    order = ("bad", "warn", "note", "good")
    return sorted(shown, key=lambda badge: order.index(badge.kind))


def _badge_text(run: Run, text: str) -> str:
    """Text of a badge, with its number where it has one."""
    if text == "few repeats":
        return _repeats_text(run)
    if text == "invalid cells" and not run.is_batch:
        invalid, cells = invalid_count(run)
        return f"{invalid} of {plural(cells, 'cell')} invalid"
    return text


def invalid_count(run: Run) -> tuple[int, int]:
    """Number of invalid cells, and of all cells. A cell is one repeat."""
    cells = run.repeats if any(not cell.valid for cell in run.repeats) else run.pooled
    return sum(not cell.valid for cell in cells), len(cells)


def _repeats_text(run: Run) -> str:
    if run.results.search is not None:
        starts = [engine.starts for engine in run.results.search.engines if engine.trials]
        return plural(min(starts, default=0), "start")
    return repeats_text(*repeat_counts(run))


def _alike_in_all_cells(facts: list[Fact]) -> list[Fact]:
    """Facts of cells; those of a server, which all of its cells repeat, once and without load and repeat."""
    of_server = ("unreported", "failed_answers", "wrong_answers", "inaccurate", "less_accurate")
    kept: list[Fact] = []
    for fact in facts:
        if fact.kind in of_server:
            fact = fact.model_copy(update={"scope": Scope(engine=fact.scope.engine)})
        if fact not in kept or fact.kind not in of_server:
            kept.append(fact)
    return kept


def _with_first_failure(run: Run, fact: Fact) -> Fact:
    """Add to failures the error of the first request that failed, and what to do about it."""
    if fact.kind not in ("failures", "no_success", "tolerated"):
        return fact
    for group in run.groups:
        if (group.label, group.load) != (fact.scope.engine, fact.scope.load):
            continue
        requests = group.whole.requests
        if (failed := requests["error"].notna().to_numpy()).any():
            first = requests.iloc[int(failed.argmax())].to_dict()
            hint, _ = warmup_hint(first, started=group.engine != RUNNING_SERVER)
            texts = [text for text in (first["error_detail"], hint) if isinstance(text, str)]
            text = f"{first['error']} ({'; '.join(texts)})" if texts else str(first["error"])
            return fact.model_copy(update={"values": fact.values | {"first": text}})
    return fact


def _with_error(run: Run, fact: Fact) -> Fact:
    """Add to an estimate of tokens by how much the same tokenizer is wrong where a server counts them."""
    if fact.kind != "estimated":
        return fact
    for group in run.groups:
        good = group.good[group.good["text_tokens"].notna()]
        if len(good):
            off = abs(float(good["text_tokens"].sum() / good["completion_tokens"].sum()) - 1)
            return fact.model_copy(update={"values": fact.values | {"off": off, "checked": group.label}})
    return fact


def _of_code(run: Run) -> Iterator[Fact]:
    """State code that changed, that is not another as it should be, or that nobody can fetch."""
    hashes = {launch.label: {code.sha256 for code in launch.codes} for launch in run.meta.launches}
    for launch in run.meta.launches:
        if len(hashes[launch.label]) > 1:
            yield Fact.of("code_changed", launch.label, folders=_folders(launch))
    for a, b in combinations(run.meta.launches, 2):
        is_meant = a.engine == b.engine and a.env.get("PYTHONPATH") != b.env.get("PYTHONPATH")
        if is_meant and a.codes and hashes[a.label] == hashes[b.label]:
            yield Fact.of("same_code", a.label, other=b.label, folders=_folders(a))
    revision = run.meta.versions.git_rev or ""
    if revision.endswith(DIRTY):
        yield Fact.of("uncommitted", commit=revision.removesuffix(DIRTY)[:12])


def _folders(launch: LaunchRecord) -> str:
    return several(dict.fromkeys(code.folder for code in launch.codes))


def _skipped(run: Run) -> Iterator[Fact]:
    """State engines without a result, or without that of some cells."""
    measured = {cell.label for cell in run.repeats}
    for fault in run.results.skipped:
        values: dict[str, Value] = {"reason": fault.reason}
        if fault.hint:
            values["hint"] = fault.hint
        if fault.label in measured:
            yield Fact.of("skipped_cells", fault.label, **values).within(load=fault.load, repeat=fault.repeat)
        else:
            yield Fact.of("skipped", fault.label, **values)


def _fitted(run: Run) -> Iterator[Fact]:
    trace = run.meta.trace
    if trace is not None and (trace.dropped or trace.changed):
        yield Fact.of(
            "fitted", dropped=trace.dropped, changed=trace.changed, fit=trace.fit, requests=trace.requests
        )


def _differing(run: Run) -> Iterator[Fact]:
    """State stored results that the raw times do not give."""
    if differences := run.disagreements:
        yield Fact.of("stored_differently", count=len(differences), first=differences[0])


def _hidden_caches(run: Run) -> Iterator[Fact]:
    """State that a server answered prompts that it had before sooner, and reported no cached tokens."""
    for launch in run.meta.launches:
        if (again := launch.facts.get(PROMPTS_AGAIN)) is not None:
            value = cast("dict[str, Any]", again.value)
            yield from (fact.within(launch.label) for fact in hidden_cache(**value))


def _interrupted(run: Run) -> Iterator[Fact]:
    """State what is missing from a run that its user ended early."""
    meta = run.meta
    if not meta.interrupted:
        return
    measured = [cell.label for cell in run.repeats]
    planned = [label for label, _ in meta.order]
    if meta.search is not None:
        planned = [variant.label for variant in make_engine_variants(meta.settings)]
    reported = {*measured, *(fault.label for fault in run.results.skipped)}
    labels = {
        "lacking": dict.fromkeys(unasked.label for unasked in meta.unasked if not unasked.reason),
        "absent": dict.fromkeys(label for label in planned if label not in reported),
    }
    missing = {name: few(list(each)) for name, each in labels.items() if each}
    values: dict[str, Value] = {"measured": len(measured), "subcommand": meta.subcommand, **missing}
    if meta.is_adaptive:
        yield Fact.of("interrupted_early", **values)
    else:
        cells = len(meta.order) * len(meta.settings.loads)
        if meta.settings.until is not None:
            values["until"] = True
        yield Fact.of("interrupted", cells=cells, **values)


def _failed_after(run: Run) -> Iterator[Fact]:
    for fault in run.meta.unasked:
        if fault.reason:
            values: dict[str, Value] = {"reason": "; ".join(filter(None, (fault.reason, fault.hint)))}
            if fault.what:
                values["checks"] = several(CHECKS[check] for check in fault.what)
                values["subcommand"] = run.meta.subcommand
            yield Fact.of("failed_after", fault.label, **values).within(repeat=fault.repeat)


def _unfair(run: Run) -> Iterator[Fact]:
    """State answers that were not checked, and settings that are not equal."""
    settings, answers = run.meta.settings, run.results.answers
    if answers is None:
        option: dict[str, Value] = {} if settings.check_answers else {"option": "--no-check-answers"}
        yield Fact.of("answers_unchecked", **option)
    if settings.is_sampled:
        drawn = ", ".join(f"{name} {value}" for name, value in settings.sampling.items())
        yield Fact.of("sampled", sampling=drawn or "as --body says", checked=answers is not None)
    for check in answers.checks if answers else ():
        if check.verdict == "unknown" and check.reason is not None:
            yield check.reason.within(check.label)
    for launch in run.meta.launches:
        if isinstance(listed := launch.settings.get("lists_instead"), list):
            model, names = str(launch.settings["model"]), few(list(map(str, listed)))
            yield Fact.of("unlisted_model", launch.label, model=model, listed=names)
        if settings.max_model_len == UNKNOWN_CONTEXT and "context" not in launch.facts:
            yield Fact.of("unknown_context", launch.label)
    if not run.meta.environment.get("calibration"):
        option = {} if settings.calibrate else {"option": "--no-calibrate"}
        yield Fact.of("uncalibrated", **option)
    yield from unequal_settings(run)
    yield from _unknown_dtypes(run)


def _noise(run: Run) -> Iterator[Fact]:
    """State an engine that differs from itself, of a run that measures each as two."""
    if not run.meta.settings.aa:
        return
    sides = {launch.label: launch.side_of for launch in run.meta.launches}
    same = [
        pair.a
        for pair in run.results.comparisons
        if pair.verdict in REAL and sides.get(pair.a, "") == sides.get(pair.b)
    ]
    for label in dict.fromkeys(same):
        yield Fact.of("differs_from_itself", label)


def _measured_again(run: Run) -> Iterator[Fact]:
    for group in run.groups:
        if lags := run.results.late_before.get(group.cell):
            again = Fact.of("measured_again", group.label, times=len(lags), lag_ms=max(lags))
            yield again.within(load=group.load, repeat=group.repeat)


def _preset(run: Run) -> Iterator[Fact]:
    """State which published benchmark the run has the settings of, and which it has not."""
    if (preset := run.meta.preset) is None:
        return
    values: dict[str, Value] = preset.model_dump(exclude={"deviations"})
    if preset.deviations:
        values["deviations"] = ", ".join(preset.deviations)
    yield Fact.of("deviates" if preset.deviations else "conforms", **values)


def _random_prompts(run: Run) -> Iterator[Fact]:
    """State that tokens were drafted, or experts chosen, for prompts without a meaning."""
    if run.meta.settings.dataset is not None:
        return
    for each in run.results.speculation:
        tokens = Fact.of("random_drafts", each.label, tokens_per_step=each.count.tokens_per_step)
        yield tokens.within(load=each.load, repeat=each.repeat)
    if run.meta.experts > 1:
        yield Fact.of("random_experts", experts=run.meta.experts)


def _sent_again(run: Run) -> Iterator[Fact]:
    """State that a dataset was sent before on purpose, or has fewer prompts than a cell sent."""
    trace = run.meta.trace
    if trace is None:
        return
    if run.meta.settings.same_prompts:
        yield Fact.of("same_prompts", dataset=trace.name)
    if trace.prompts is None:
        return
    counts = [(begun(group), group) for group in run.groups if group.repeat is not None]
    most, group = max(counts, key=lambda entry: entry[0], default=(0, None))
    if group is not None and most > trace.prompts:
        items = "conversations" if run.meta.settings.turns is not None else "prompts"
        again = Fact.of("sent_again", items=items, dataset=trace.name, available=trace.prompts, sent=most)
        yield again.within(group.label, group.load)


def _window(run: Run) -> Iterator[Fact]:
    """State what a window left out."""
    cut = [summary for summary in run.repeats if summary.window_s is not None]
    if cut:
        left_out = sum(summary.left_out for summary in cut)
        requests = left_out + sum(summary.num_requests for summary in cut)
        steady = run.meta.settings.steady_state
        yield Fact.of("window", left_out=left_out, requests=requests, steady=steady)


def _few_repeats(run: Run) -> Iterator[Fact]:
    if run.results.search is not None:
        for engine in run.results.search.engines:
            if engine.trials and engine.starts < ENOUGH_STARTS:
                yield Fact.of("few_starts", engine.label, starts=engine.starts, enough=ENOUGH_STARTS)
        return
    counts = Counter((cell.label, cell.load) for cell in run.repeats)
    settings = run.meta.settings
    if settings.until is not None and not decided(of_cells(run.repeats, len(settings.looks)), settings.until):
        yield Fact.of("budget_spent", effect=settings.until, repeats=max(counts.values(), default=0))
    for label in dict.fromkeys(label for label, _ in counts):
        repeats = min(count for (name, _), count in counts.items() if name == label)
        if repeats < ENOUGH_REPEATS:
            yield Fact.of("few_repeats", label, repeats=repeats, enough=ENOUGH_REPEATS)


# --- Settings that are not equal, and which of them can matter at the load of the answer ------------------

#: Tokens of the largest blocks in which engines keep a KV cache.
_BLOCK = 128
#: Limits that differ by no more than this share are as good as equal, such as KV caches of the same memory.
_NEAR = 0.01


def unequal_settings(run: Run) -> Iterator[Fact]:
    """State each setting that differs between engines; nothing of a tuning, which sets them."""
    ledger = None if run.meta.tune is not None else run.results.ledger
    rows = [row for row in ledger.unequal if not _is_near(row)] if ledger else []
    needed = _needed(run) if rows else {}
    for row in rows:
        reported = [f"{label} {fact_text(value)}" for label, value in _values(row).items()]
        ample = _is_ample(row, needed.get(row.key))
        yield Fact.of("unequal_setting", setting=row.name, reported=", ".join(reported), ample=ample)


def _unknown_dtypes(run: Run) -> Iterator[Fact]:
    """State which of several engines do not report their dtype, the least that must be equal."""
    ledger = run.results.ledger
    if run.meta.tune is not None or ledger is None or len(ledger.labels) < 2:
        return
    row = next((row for row in ledger.rows if row.key == "dtype"), None)
    for label in ledger.labels:
        if row is None or row.facts.get(label) is None:
            yield Fact.of("unknown_dtype", label)


def _needed(run: Run) -> Mapping[str, int]:
    """Most that the requests in flight can take of a limit, by its key; of a cache only where it is of no use
    to later prompts."""
    load = shown_load(run.pooled)
    peaks = [summary.peak_in_flight for summary in run.pooled if summary.load == load]
    sent = (run.requests["load"] == load_text(load)).to_numpy(dtype=bool)
    known_peaks = [peak for peak in peaks if peak is not None]
    if not sent.any() or len(known_peaks) < len(peaks):
        return {}
    prompts, answers, reusable = (
        run.requests[name].to_numpy(np.float64)[sent]
        for name in ("input_tokens", "output_tokens", "reusable_tokens")
    )
    in_flight, prompt = max(known_peaks), int(prompts.max())
    whole = int((prompts + answers).max())
    needed = {"max_batch": in_flight, "max_batched_tokens": in_flight * prompt}
    if not np.nansum(reusable):
        needed["kv_tokens"] = in_flight * -(-whole // _BLOCK) * _BLOCK
    return needed


def _values(row: LedgerRow) -> dict[str, JsonValue]:
    """By label, of the engines that tell."""
    return {label: fact.value for label, fact in row.facts.items() if fact is not None}


def _is_ample(row: LedgerRow, needed: int | None) -> bool:
    """Tell whether a limit is reached by no engine."""
    return needed is not None and all(
        isinstance(value, int | float) and value >= needed for value in _values(row).values()
    )


def _is_near(row: LedgerRow) -> bool:
    """Tell whether a setting is a number that hardly differs."""
    values = _values(row).values()
    numbers = [value for value in values if isinstance(value, int | float)]
    return len(values) == len(numbers) > 0 and min(numbers) >= (1 - _NEAR) * max(numbers) > 1
