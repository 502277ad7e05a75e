"""Facts of a run, their severity, and the badges that hold them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue

from harness.report.notices import _with_error, badges, facts_of, notices, unequal_settings
from harness.report.text.provenance import code
from harness.report.wording import WORDING
from harness.runs.reader import Run, load_run
from harness.schema.facts import KINDS, Fact, FactKind, Scope, merge
from harness.schema.fairness import AnswerCheck, AnswerChecks, EngineFact, Ledger, LedgerRow
from harness.schema.results import Skipped, Speculation, SpeculationCount
from harness.schema.run_info import Code, LaunchRecord

from .conftest import ENGINES, make_online

ONE, OTHER = Code(folder="/src/one", sha256="1" * 16), Code(folder="/src/other", sha256="2" * 16)


def kinds(run: Run) -> set[FactKind]:
    return {fact.kind for fact in facts_of(run)}


def with_results(run: Run, **fields: object) -> Run:
    return replace(run, results=run.results.model_copy(update=fields))


def with_facts(run: Run, *facts: Fact) -> Run:
    """Each cell has these facts in place of its own."""
    summaries = [
        cell.model_copy(
            update={"notices": [fact.within(cell.label, cell.load, cell.repeat) for fact in facts]}
        )
        for cell in run.results.summaries
    ]
    return with_results(run, summaries=summaries)


def launch(label: str, path: str | None, *codes: Code, engine: str = "roseinfer") -> LaunchRecord:
    env = {} if path is None else {"PYTHONPATH": path}
    return LaunchRecord(engine=engine, label=label, env=env, codes=list(codes))


def started(run: Run, *launches: LaunchRecord) -> Run:
    return with_results(run, meta=run.meta.model_copy(update={"launches": list(launches)}))


def test_each_notice_is_in_exactly_one_badge(run: Run) -> None:
    folded = [notice for badge in badges(run) for notice in badge.notices]
    assert sorted(notice.kind for notice in folded) == sorted(notice.kind for notice in notices(run))


def test_a_badge_is_as_grave_as_its_gravest_notice(run: Run) -> None:
    kinds = {"invalid": "bad", "warning": "warn", "note": "note"}
    for badge in badges(run):
        if badge.notices:
            order = list(kinds)
            gravest = min((notice.severity for notice in badge.notices), key=order.index)
            assert badge.kind == kinds[gravest]
        else:
            assert badge.kind == "good"


def test_a_badge_is_about_engines_unless_a_notice_is_about_the_whole_run(small: Run) -> None:
    drift = Fact(kind="drift", scope=Scope(engine="vLLM"), values={"before": 9, "after": 5, "moment_s": 7})
    [badge] = [each for each in badges(with_facts(small, drift)) if each.text == "changed meanwhile"]
    assert badge.engines == ["vLLM"]
    unchecked = [each for each in badges(small) if each.text == "answers unchecked"]
    assert all(each.engines == [] for each in unchecked)


def test_invalid_cells_come_first_and_keep_the_good_badge_away(run: Run, small: Run) -> None:
    assert badges(run)[0].kind == "bad" and "1 of 24 cells invalid" in [badge.text for badge in badges(run)]
    texts = [badge.text for badge in badges(small)]
    assert "all cells valid" in texts and "client on time" not in texts  # it was not calibrated


@pytest.mark.parametrize("kind", [None, "one_late", "harmless_lag"])
def test_a_client_that_was_late_at_all_is_not_on_time(small: Run, kind: FactKind | None) -> None:
    values = {name: 5.0 for name in KINDS[kind or "unmeasured"] if name != "node"}
    lag = [] if kind is None else [Fact(kind=kind, values=values)]
    calibrated = small.meta.model_copy(update={"environment": {"calibration": {"of": "the client"}}})
    texts = [badge.text for badge in badges(with_results(with_facts(small, *lag), meta=calibrated))]
    assert ("client on time" in texts) == (kind is None)


def test_drafts_for_random_prompts_are_stated(small: Run) -> None:
    place = {"engine": "vllm", "label": "vLLM", "load": small.pooled[0].load, "repeat": 0}
    count = SpeculationCount(steps=9, tokens_per_step=1.2, accepted=0.1, source="page")
    drafting = with_results(small, speculation=[Speculation(**place, count=count)])
    real = drafting.meta.settings.model_copy(update={"dataset": "builtin"})
    real_text = with_results(drafting, meta=drafting.meta.model_copy(update={"settings": real}))
    assert [kinds(run) & {"random_drafts"} for run in (small, real_text)] == [set(), set()]
    [fact] = [fact for fact in facts_of(drafting) if fact.kind == "random_drafts"]
    assert fact.values == {"tokens_per_step": 1.2} and fact.scope.engine == "vLLM"


def test_random_prompts_of_a_mixture_of_experts_are_stated(small: Run) -> None:
    mixture = with_results(small, meta=small.meta.model_copy(update={"experts": 128}))
    real = small.meta.settings.model_copy(update={"dataset": "builtin"})
    real_text = with_results(mixture, meta=mixture.meta.model_copy(update={"settings": real}))
    assert [kinds(run) & {"random_experts"} for run in (small, real_text)] == [set(), set()]
    [fact] = [fact for fact in facts_of(mixture) if fact.kind == "random_experts"]
    assert fact.values == {"experts": 128}


def test_failures_have_the_first_error(run: Run) -> None:
    [failures] = [fact for fact in facts_of(run) if fact.kind == "failures"]
    assert (failures.scope.engine, failures.values["failed"]) == ("vLLM", 3)
    assert str(failures.values["first"]).startswith("timeout (nothing came for 300 s")


def test_a_power_cap_is_a_note_and_another_reason_a_warning(run: Run) -> None:
    values = {"gpu": "0", "share": 0.5}
    capped = with_facts(run, Fact(kind="power_capped", values=values))
    hot = with_facts(run, Fact(kind="throttled", values=values | {"reason": "thermal"}))
    for changed, kind in ((capped, "note"), (hot, "warn")):
        [badge] = [badge for badge in badges(changed) if badge.text.startswith("GPU")]
        assert (badge.kind, len(badge.notices)) == (kind, 1)


def test_what_a_server_does_not_report_is_stated_once_an_engine(run: Run) -> None:
    stated = [
        fact for fact in facts_of(with_facts(run, Fact(kind="unreported"))) if fact.kind == "unreported"
    ]
    assert [fact.scope for fact in stated] == [Scope(engine=label) for _, label in run.engines]


def test_answers_that_were_not_checked(run: Run, offline_run: Path) -> None:
    assert "answers_unchecked" in kinds(run)
    offline = load_run(offline_run)
    assert "answers_unchecked" in kinds(offline)
    reason = Fact(kind="unchecked_answers", values={"unknown": 0, "answers": 6})
    unknown = AnswerCheck(engine="vllm", label="vLLM", verdict="unknown", reason=reason, answers=[])
    same = unknown.model_copy(update={"verdict": "same", "reason": None})
    for check, badge in ((unknown, "answers unchecked"), (same, "answers same")):
        checks = AnswerChecks(rule="", reference=None, checks=[check])
        assert badge in [badge.text for badge in badges(with_results(run, answers=checks))]


def test_skipped_cells_of_one_reason_are_one_fact(run: Run) -> None:
    load = run.pooled[0].load
    fault = Skipped(engine="x", label="x", load=load, reason="it ended", hint="look")
    twice = with_results(run, skipped=[fault.model_copy(update={"repeat": repeat}) for repeat in (0, 1)])
    absent = [fact for fact in facts_of(twice) if fact.kind == "skipped"]
    expected = Fact(kind="skipped", scope=Scope(engine="x"), values={"reason": "it ended", "hint": "look"})
    assert absent == [expected, expected] and len(merge(absent)) == 1
    label = run.pooled[0].label
    partly = with_results(run, skipped=[fault.model_copy(update={"label": label, "repeat": 0})])
    [missing] = [fact for fact in facts_of(partly) if fact.kind == "skipped_cells"]
    assert missing.scope == Scope(engine=label, load=load, repeat=0)


def test_repeats_below_enough_are_stated(tmp_path: Path, small: Run) -> None:
    [few] = [fact for fact in facts_of(small) if fact.kind == "few_repeats"]
    assert few.values == {"repeats": 1, "enough": 5}
    many = make_online(tmp_path / "run", engines=ENGINES[:1], scales=[1.0], repeats=5, n=40, faults=False)
    loaded = load_run(many, trust=True)
    assert "few_repeats" not in kinds(loaded)
    assert "5 repeats" in [badge.text for badge in badges(loaded)]


def test_code_that_changed_while_it_was_measured_is_invalid(run: Run) -> None:
    changed = started(run, launch("roseinfer", None, ONE, OTHER), launch("vLLM", None, engine="vllm"))
    [fact] = [fact for fact in facts_of(changed) if fact.kind == "code_changed"]
    assert fact.scope.engine == "roseinfer" and WORDING[fact.kind].severity == "invalid"


@pytest.mark.parametrize(("codes", "same"), [((ONE, ONE), True), ((ONE, OTHER), False)])
def test_variants_that_were_to_run_other_code(run: Run, codes: tuple[Code, Code], same: bool) -> None:
    variants = [launch(label, f"/src/{label}", found) for label, found in zip("ab", codes, strict=True)]
    assert ("same_code" in kinds(started(run, *variants))) is same


def test_code_that_was_not_committed(run: Run) -> None:
    versions = run.meta.versions.model_copy(update={"git_rev": f"{'0' * 40}-dirty"})
    dirty = with_results(run, meta=run.meta.model_copy(update={"versions": versions}))
    [fact] = [fact for fact in facts_of(dirty) if fact.kind == "uncommitted"]
    assert fact.values == {"commit": "0" * 12} and "uncommitted" not in kinds(run)


def test_the_folder_and_hash_of_what_was_started() -> None:
    assert code(launch("a", None, ONE)) == f"/src/one ({'1' * 16})"


def test_an_interrupted_run_states_what_is_missing(run: Run) -> None:
    order = [(engine.label, repeat) for repeat in range(3) for engine in ENGINES]
    meta = run.meta.model_copy(update={"interrupted": True, "order": [*order, ("x", 0)]})
    [fact] = [fact for fact in facts_of(with_results(run, meta=meta)) if fact.kind == "interrupted"]
    assert (fact.values["measured"], fact.values["cells"], fact.values["absent"]) == (24, 39, "x")


def test_a_fitted_trace_is_stated(run: Run) -> None:
    [fact] = [fact for fact in facts_of(run) if fact.kind == "fitted"]
    assert (fact.values["changed"], fact.values["requests"]) == (45, 120)


def test_a_dataset_with_fewer_prompts_than_were_sent(run: Run) -> None:
    assert run.meta.trace is not None
    for prompts, again in ((10, True), (10**6, False)):
        trace = run.meta.trace.model_copy(update={"prompts": prompts})
        changed = with_results(run, meta=run.meta.model_copy(update={"trace": trace}))
        assert ("sent_again" in kinds(changed)) is again


# --- Settings that are not equal -------------------------------------------------------------------------

_NAMES = {"kv_tokens": "KV cache (tokens)", "graphs": "CUDA graphs (batch sizes)"}


def with_settings(run: Run, **rows: tuple[JsonValue, JsonValue]) -> Run:
    """Each row has the values of two engines."""
    labels = ["roseinfer", "vLLM"]
    found = [
        LedgerRow(
            key=key,
            name=_NAMES.get(key, key.replace("_", " ")),
            facts={
                label: EngineFact(value=value, source="log")
                for label, value in zip(labels, values, strict=True)
            },
            agreement="differs" if values[0] != values[1] else "equal",
        )
        for key, values in rows.items()
    ]
    return replace(run, results=run.results.model_copy(update={"ledger": Ledger(labels=labels, rows=found)}))


def differing(run: Run) -> dict[str, bool]:
    """Names of the settings that differ, and whether each is a limit that nobody reaches."""
    return {str(fact.values["setting"]): bool(fact.values["ample"]) for fact in unequal_settings(run)}


@pytest.mark.parametrize(
    ("rows", "reusable_tokens", "shown"),
    [
        ({"dtype": ("float16", "float16")}, None, {}),
        (
            {"kv_tokens": (743_120, 749_796), "threads": (1, 2)},
            None,
            {"threads": False},
        ),  # of the same memory
        ({"kv_tokens": (743_120, 800_000)}, 16, {"KV cache (tokens)": False}),
        ({"kv_tokens": (10**8, 10**9)}, None, {"KV cache (tokens)": True}),
        ({"kv_tokens": (10**8, 10**9)}, 16, {"KV cache (tokens)": False}),  # which later prompts can use
        ({"max_batch": (1, 1000)}, None, {"max batch": False}),
        ({"max_batch": (900, 1000)}, None, {"max batch": True}),  # that no engine reaches
    ],
)
def test_settings_that_differ_are_stated_and_whether_they_can_matter(
    run: Run, rows: Any, reusable_tokens: int | None, shown: dict[str, bool]
) -> None:
    requests = run.requests
    if reusable_tokens is not None:
        requests = requests.assign(reusable_tokens=reusable_tokens)
    assert differing(with_settings(replace(run, requests=requests), **rows)) == shown


def test_a_setting_is_stated_with_the_value_of_each_engine(run: Run) -> None:
    [fact] = unequal_settings(with_settings(run, threads=(1, 2000)))
    assert fact.values == {"setting": "threads", "reported": "roseinfer 1, vLLM 2,000", "ample": False}
    assert not [*unequal_settings(replace(run, results=run.results.model_copy(update={"ledger": None})))]


def test_an_estimate_has_the_error_where_a_server_counts(run: Run) -> None:
    """Of the first engine whose tokens are counted, and of which the tokenizer counts the text too."""
    first, other = run.groups[0].label, next(g.label for g in run.groups if g.label != run.groups[0].label)
    groups = [
        replace(
            group,
            requests=group.requests.assign(
                text_tokens=None if group.label == first else 1.1 * group.requests["completion_tokens"]
            ),
        )
        for group in run.groups
    ]
    estimate = Fact.of("estimated", share=1.0)
    stated = _with_error(replace(run, groups=groups), estimate)
    assert stated.values["off"] == pytest.approx(0.1) and stated.values["checked"] == other
    uncounted = [replace(group, requests=group.requests.assign(text_tokens=None)) for group in run.groups]
    assert _with_error(replace(run, groups=uncounted), estimate) == estimate
