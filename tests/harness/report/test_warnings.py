"""What the report says beside its figures: warnings, badges, how much was answered, on which machine."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.metrics.notices import begun
from harness.report.findings import findings
from harness.report.markdown import summary
from harness.report.text.badges import badges
from harness.report.text.heading import machine
from harness.report.text.numbers import few, percent
from harness.report.text.run_notices import notices
from harness.report.text.terms import terms
from harness.report.text.unfinished import unfinished
from harness.report.text.verdict import shown_load, verdict
from harness.runs.reader import Run, load_run
from harness.schema.cell_notice import CellNotice
from harness.schema.load import TraceLoad
from harness.schema.results import Skipped

from .conftest import ABOUT, comparison, make_offline

REPORTS = Path(__file__).parents[3] / "reports"


def test_too_few_rounds_are_said(swept):
    [found] = [notice for notice in notices(swept) if "for each in flight" in notice.title]
    assert found.detail == (
        "100 requests for 64 in flight: most are sent while the load begins or ends. "
        "--rounds 10 sends ten for each in flight."
    )


def test_warnings_name_every_reason(run, small):
    found: dict[str, str] = {}
    for notice in notices(run):
        found[notice.kind] = f"{found.get(notice.kind, '')} {notice.title} {notice.detail}"
    assert "vLLM at scale 0.4 is invalid" in found["invalid"]
    assert "3 of 200 requests failed (disconnected 1, timeout 2)" in found["invalid"]
    assert "TensorRT-LLM was skipped: needs an NVIDIA GPU. To include it" in found["skipped"]
    assert "75 of 200 (38 %) changed" in found["load"]
    assert next(notice.kind for notice in notices(run)) == "invalid"
    unchecked, fitted, client, short = notices(small)
    assert [unchecked.kind, *(each.kind for each in (fitted, client, short))] == ["skipped", *["load"] * 3]
    assert unchecked.title == "The answers were not checked."
    assert client.title == "The client was not calibrated."
    assert "was fitted" in fitted.title and "is short" in short.title


def test_what_repeats_have_in_common_is_said_once(run):
    texts = [
        "repeat 1: GPU 0 lowered its clocks: power cap in 81 % of the samples",
        "repeat 1: GPU 1 lowered its clocks: power cap in 30 % of the samples",
        "repeat 2: GPU 0 lowered its clocks: power cap in 9.5 % of the samples",
        "the GPU clocks of repeats differ: 1,200 and 1,500 MHz",
    ]
    first, *others = run.pooled
    noticed = [CellNotice(kind="throttled", text=text) for text in texts]
    cells = [
        first.model_copy(update={"notices": noticed}),
        *(other.model_copy(update={"notices": []}) for other in others),
    ]
    changed = run.results.model_copy(update={"summaries": cells})
    [found] = [n for n in notices(replace(run, results=changed)) if "clocks" in n.title]
    place = "At scale 0.4"
    assert found.detail == (
        f"{place}, 2 repeats: GPU 0 lowered its clocks: power cap in 9.5 to 81 % of the samples. "
        f"{place}, {texts[1]}. {place}, {texts[3]}."
    )


def noticed(run, kind, texts):
    """The run with notices of that kind alone: the texts of each cell."""
    cells = [
        cell.model_copy(
            update={
                "notices": [CellNotice(kind=kind, text=t) for t in texts(cell)] if cell.repeat is None else []
            }
        )
        for cell in run.results.summaries
    ]
    return replace(run, results=run.results.model_copy(update={"summaries": cells}))


def test_what_all_engines_have_alike_is_one_notice(run):
    """In two repeats of four engines: in one of vLLM, and in none of SGLang at scale 1.6."""

    def texts(cell):
        repeats = () if (cell.label, cell.load.value) == ("SGLang", 1.6) else (1, 2)[cell.label == "vLLM" :]
        share = 40 + 10 * cell.load.value + len(cell.label)
        return [
            f"repeat {i}: GPU 0 lowered its clocks: power cap in {share:g} % of the samples" for i in repeats
        ]

    capped = noticed(run, "throttled", texts)
    [found] = [notice for notice in notices(capped) if "clocks" in notice.title]
    assert found.title == "A GPU lowered its clocks while every engine was measured."
    assert found.detail == (
        "At scale 1.6, in 5 of 8 cells (roseinfer, roseinfer (-mp async admit) and vLLM): "
        "GPU 0 lowered its clocks: power cap in 60 to 83 % of the samples. "
        "At scale 0.8, in 7 of 8 cells: GPU 0 lowered its clocks: power cap in 52 to 75 % of the samples. "
        "At scale 0.4, in 7 of 8 cells: GPU 0 lowered its clocks: power cap in 48 to 71 % of the samples."
    )
    [badge] = [badge for badge in badges(capped) if found in badge.notices]
    assert (badge.kind, badge.text, len(badge.notices)) == ("note", "GPU power-capped", 1)
    some = noticed(run, "throttled", lambda cell: texts(cell) if cell.label != "vLLM" else [])
    assert len([notice for notice in notices(some) if "clocks" in notice.title]) == 3
    hot = noticed(run, "throttled", lambda cell: [t.replace("power cap", "hot") for t in texts(cell)])
    assert ("warn", "GPU clocks lowered") in {(badge.kind, badge.text) for badge in badges(hot)}


@pytest.mark.parametrize(("kind", "weight"), [("order", "note"), ("inferred", "note"), ("repeats", "warn")])
def test_what_is_usual_has_a_badge_of_less_weight(run, kind, weight):
    """Than that the repeats of an engine disagree."""
    [badge] = [b for b in badges(noticed(run, kind, lambda cell: ["text"])) if "more notice" in b.text]
    assert (badge.kind, len(badge.notices)) == (weight, 4)


def test_what_is_skipped_again_and_again_for_one_reason_is_one_notice(run):
    def skipped(*places):
        faults = [
            Skipped(engine="x", label="X", load=load, repeat=repeat, reason=reason)
            for load, repeat, reason in places
        ]
        shown = replace(run, results=run.results.model_copy(update={"skipped": faults}))
        [badge] = [badge for badge in badges(shown) if "skipped" in badge.text]
        assert badge.text == f"{len(badge.notices)} skipped"
        return [notice.title for notice in badge.notices]

    light, heavy = TraceLoad(scale=1.6), TraceLoad(scale=0.4)
    assert skipped((None, 0, "it ended"), (None, 1, "it ended")) == ["X was skipped in 2 repeats:"]
    assert skipped((light, 0, "it ended"), (light, 2, "it ended")) == [
        "X was skipped at scale 1.6 in 2 repeats:"
    ]
    assert skipped((light, 0, "it ended"), (heavy, 0, "it ended")) == ["X was skipped in 2 cells:"]
    assert skipped((light, 0, "it ended"), (light, 1, "it hung")) == [
        "X was skipped at scale 1.6, repeat 1:",
        "X was skipped at scale 1.6, repeat 2:",
    ]


def test_a_search_is_judged_by_its_starts():
    """It has no repeats, and no option for them."""
    run = load_run(REPORTS / "cpu-amx-smollm2-135m-search", trust=True)
    assert isinstance(run, Run) and run.results.search is not None
    search = run.results.search
    assert ("good", "3 starts") in {(badge.kind, badge.text) for badge in badges(run)}
    once = [
        found.model_copy(update={"trials": [trial for trial in found.trials if not trial.start]})
        for found in search.engines
    ]
    results = run.results.model_copy(update={"search": search.model_copy(update={"engines": once})})
    found = badges(replace(run, results=results))
    [badge] = [badge for badge in found if badge.text == "1 start"]
    [notice] = badge.notices
    assert badge.kind == "warn" and notice.title == "1 start; 2 or more are better."
    assert not any("--repeats" in notice.detail for badge in found for notice in badge.notices)


def test_a_notice_about_right_answers_is_counted_in_their_badge():
    """A warning sign beside \"answers same\" alone would contradict it."""
    run = load_run(REPORTS / "cpu-amx-smollm2-135m", trust=True)
    [badge] = [badge for badge in badges(run) if badge.text.startswith("answers")]
    assert (badge.kind, badge.text, len(badge.notices)) == ("warn", "answers same, 1 notice", 1)


def test_a_disturbed_machine_has_a_badge_of_its_own(run):
    text = "the CPUs ran at 2,000 MHz in one repeat and at 2,500 MHz in another"
    disturbed = noticed(run, "disturbed", lambda cell: [text] * (cell.label == "vLLM"))
    [badge] = [badge for badge in badges(disturbed) if badge.text == "machine disturbed"]
    assert badge.kind == "warn" and len(badge.notices) == 1
    assert not any("more notice" in badge.text for badge in badges(disturbed))
    [found] = [n for n in notices(noticed(run, "disturbed", lambda cell: [text])) if "disturbed" in n.title]
    assert found.title == "The machine was disturbed while every engine was measured."
    assert found.detail.count(text) == 3 and "cells" not in found.detail


def test_invalid_cells_of_an_engine_are_counted(run):
    bad = [s.model_copy(update={"valid": False}) if s.label == "vLLM" else s for s in run.results.summaries]
    changed = run.results.model_copy(update={"summaries": bad})
    [found] = [n for n in notices(replace(run, results=changed)) if "invalid" in n.title]
    assert found.title == "6 cells of vLLM are invalid."
    assert found.detail.endswith("They are shown, marked as invalid, and not compared.")


def test_an_engine_with_fewer_repeats_is_named(run):
    """Of a run that was ended early."""
    ended = run.results.model_copy(
        update={
            "summaries": [s for s in run.results.summaries if s.label != "SGLang" or s.repeat in (None, 0)],
            "comparisons": [
                comparison("roseinfer", "SGLang", 0.5, (0.3, 0.8)).model_copy(update={"repeats": (2, 1)})
            ],
        }
    )
    changed = replace(run, results=ended)
    [badge] = [badge for badge in badges(changed) if "repeat" in badge.text]
    assert (badge.kind, badge.text) == ("warn", "1 to 2 repeats")
    assert badge.notices[0].title == "1 to 2 repeats; 5 or more are better."
    assert badge.notices[0].detail.startswith("SGLang has 1 at some load. Intervals of one repeat")
    assert any(sentence.startswith("One repeat of SGLang: intervals above") for sentence in terms(changed))
    assert all(finding.repeats == 1 for finding in findings(changed))


def test_what_a_server_does_not_report_is_said_once(run):
    said = CellNotice(kind="unreported", text="the server does not report prompt tokens from a cache")
    cells = [s.model_copy(update={"notices": [said]}) for s in run.results.summaries]
    changed = replace(run, results=run.results.model_copy(update={"summaries": cells}))
    [found] = [n for n in notices(changed) if "report" in n.title]
    assert found.title.endswith(" do not report everything that is checked.")
    assert found.detail == "The server does not report prompt tokens from a cache."


def test_the_summary_has_the_whole_text_of_a_warning(run):
    said = CellNotice(kind="behind", text=f"it fell behind{' and behind' * 150} to the very end")
    cells = [s.model_copy(update={"notices": [said]}) for s in run.results.summaries]
    changed = replace(run, results=run.results.model_copy(update={"summaries": cells}))
    assert "behind to the very end." in summary(changed)


@pytest.mark.parametrize(
    ("invalid", "slow", "place"),
    [
        ([], 64, "With 8 requests in flight, the heaviest load at which no engine fell behind"),
        ([8], 64, ", the heaviest load at which two engines are valid and no engine fell behind"),
        ([64], None, "With 8 requests in flight, the heaviest load at which two engines are valid"),
    ],
)
def test_a_load_with_an_invalid_engine_is_not_passed_over_in_silence(swept, invalid, slow, place):
    first = swept.pooled[0].label
    behind = [CellNotice(kind="behind", text="")]
    cells = [
        s.model_copy(
            update={
                "valid": s.label != first or s.load.concurrency not in invalid,
                "notices": behind if s.load.concurrency == slow else [],
            }
        )
        for s in swept.results.summaries
    ]
    changed = replace(swept, results=swept.results.model_copy(update={"summaries": cells}))
    assert place in " ".join(verdict(changed))


def test_what_a_window_left_out_is_said(run):
    assert "Only a window" not in " ".join(notice.title for notice in notices(run))
    summaries = [
        summary.model_copy(update={"window_s": (1, 2), "left_out": 50, "num_requests": 150})
        for summary in run.results.summaries
    ]
    changed = run.results.model_copy(update={"summaries": summaries})
    last = notices(type(run)(run.path, changed, run.requests, run.chunks))[-1]
    assert last.title == "Only a window of each cell is measured."
    assert last.detail.startswith("1,200 of 4,800 requests (25 %) were sent before or after it")


def test_many_engines_are_counted_and_not_listed(run):
    assert few(list("abcd")) == "a, b, c and d" and few(list("abcde")) == "a and 4 others"
    load = shown_load(run)
    cell = next(summary for summary in run.pooled if summary.load == load)
    cells = [
        cell.model_copy(update={"label": f"e{i}", "notices": [CellNotice(kind="behind", text="")]})
        for i in range(6)
    ]
    changed = run.results.model_copy(update={"summaries": cells})
    assert (
        ", where e0 and 5 others fell behind and their latency" in verdict(replace(run, results=changed))[0]
    )


@pytest.mark.parametrize(
    ("answered", "said"),
    [
        ((40, 40), "Every engine answered all requests."),
        ((40, 39), "Every engine answered at least 98 % of the requests."),
        ((4000, 3999), "Every engine answered over 99 % of the requests."),
        ((40,), "a answered all requests."),
        ((10,), "a answered 25 % of the requests."),
    ],
)
def test_how_much_was_answered_is_counted_in_requests(run, answered, said):
    """Requests a second of a short cell, in which the last answers take as long as the rest, say nothing."""
    load = shown_load(run)
    cell = next(summary for summary in run.pooled if summary.load == load)
    sent = max(40, *answered)
    known = {"num_requests": sent, "notices": [], "req_per_s": 0.5 * cell.offered_req_per_s}
    cells = [
        cell.model_copy(update={**known, "label": label, "num_success": count})
        for label, count in zip("ab", answered, strict=False)
    ]
    late = "No engine fell behind: the achieved rate is lower as it counts until the last answer ends."
    found = terms(replace(run, results=run.results.model_copy(update={"summaries": cells})))[0]
    assert found == f"{said} {late}"


@pytest.mark.parametrize(("sent", "good"), [(20, 20), (40, 25)])
def test_of_few_requests_it_is_not_known_whether_an_engine_fell_behind(run, sent, good):
    """The rule that judges it needs so many, and does not count those that were refused."""
    load = shown_load(run)
    cell = next(summary for summary in run.pooled if summary.load == load)
    slow = {"num_requests": sent, "num_success": good, "errors": {"http_429": sent - good}, "notices": []}
    slow["req_per_s"] = 0.2 * cell.offered_req_per_s
    cells = [cell.model_copy(update={**slow, "repeat": repeat}) for repeat in (None, 0)]
    found = terms(replace(run, results=run.results.model_copy(update={"summaries": cells})))[0]
    assert found == (
        f"{cell.label} answered {'all requests' if good == sent else '62 % of the requests'}. "
        "Whether an engine fell behind is not known with fewer than 30 requests."
    )


def test_a_share_is_not_rounded_to_none_or_all():
    shares = [percent(part, 1000) for part in (0, 2, 370, 998, 1000)]
    assert shares == ["0 %", "under 1 %", "37 %", "over 99 %", "100 %"] and percent(0, 0) == "0 %"


def test_every_notice_is_in_one_badge(run, small):
    for measured in (run, small):
        folded = [notice for badge in badges(measured) for notice in badge.notices]
        assert len(folded) == len(set(folded))
        assert set(notices(measured)) <= set(folded)
    kinds = [badge.kind for badge in badges(run)]
    assert kinds == sorted(kinds, key=("bad", "warn", "note", "good").index) and kinds[0] == "bad"
    assert "1 repeat" in {badge.text for badge in badges(small)}


def test_code_that_is_in_no_commit_is_noticed(run, offline_run):
    for measured in (run, load_run(offline_run)):
        for revision, said in ((None, 0), ("0" * 40, 0), (f"{'0' * 40}-dirty", 1)):
            versions = measured.meta.versions.model_copy(update={"git_rev": revision})
            meta = measured.meta.model_copy(update={"versions": versions})
            changed = replace(measured, results=measured.results.model_copy(update={"meta": meta}))
            marked = [badge for badge in badges(changed) if badge.text == "uncommitted code"]
            assert [badge.kind for badge in marked] == ["warn"] * said
            assert len(notices(changed)) - len(notices(measured)) == said
            assert all("commit 000000000000 with changes" in n.detail for b in marked for n in b.notices)
            assert all(found.validity.endswith("; uncommitted code") == said for found in findings(changed))


def test_rounds_of_sessions_are_counted(swept):
    """Not the requests in them."""
    group = swept.groups[0]
    requests = group.requests.assign(session=[f"s{i // 20}" for i in range(len(group.requests))])
    assert begun(group) == 100 and begun(replace(group, requests=requests)) == 5


def test_a_dataset_that_is_smaller_than_a_cell_is_noticed(run):
    sent = max(len(group.requests) for group in run.groups)
    for prompts, said in ((None, 0), (sent, 0), (sent - 1, 1)):
        trace = run.meta.trace.model_copy(update={"name": "few", "prompts": prompts})
        meta = run.meta.model_copy(update={"trace": trace})
        changed = replace(run, results=run.results.model_copy(update={"meta": meta}))
        found = [n for n in notices(changed) if n.title == "Some prompts were sent more than once."]
        assert len(found) == said
        assert all(f"few has {sent - 1:,} prompts that fit" in n.detail for n in found)
        assert all(f"was sent {sent:,} " in n.detail for n in found)


def test_engines_that_the_verdict_leaves_out_are_named(run):
    assert terms(run)[0] == "vLLM is not compared: 1 of its 2 repeats is invalid."
    load = shown_load(run)
    [vllm] = [s for s in run.results.summaries if (s.label, s.load, s.repeat) == ("vLLM", load, None)]
    more = [*run.results.summaries, vllm.model_copy(update={"label": "llama.cpp"})]
    both = replace(run, results=run.results.model_copy(update={"summaries": more}))
    assert terms(both)[0] == "vLLM and llama.cpp are not compared: they have invalid repeats."
    single = [s for s in run.results.summaries if s.repeat in (None, 0) or s.label != "vLLM"]
    short = replace(run, results=run.results.model_copy(update={"summaries": single}))
    assert terms(short)[0] == "vLLM is not compared: its cell is invalid."
    sound = [s.model_copy(update={"valid": True}) for s in run.results.summaries]
    assert (
        "not compared"
        not in terms(replace(run, results=run.results.model_copy(update={"summaries": sound})))[0]
    )


def test_what_an_interrupted_run_lacks(run):
    done = [(cell.label, cell.repeat) for cell in run.repeats]
    loads = len(run.meta.settings.loads)
    for order, title, ending in (
        ([*done[::loads], ("SGLang", 9)], "The run was interrupted with ", "measures the rest."),
        (done[::loads], "The run was interrupted after its last cell.", "checks the answers."),
    ):
        meta = run.meta.model_copy(update={"interrupted": True, "order": order})
        changed = replace(run, results=run.results.model_copy(update={"meta": meta}))
        said, detail = unfinished(changed)
        assert said.startswith(title) and detail.endswith(ending)


def test_the_machine_is_that_of_the_run(run):
    gpus = [{"name": "NVIDIA H200"}, {"name": "NVIDIA H200"}]
    for device, ahead in (("cuda", "2 × NVIDIA H200, "), ("cpu", "")):
        meta = run.meta.model_copy(
            update={
                "environment": run.meta.environment | {"gpus": gpus},
                "settings": run.meta.settings.model_copy(update={"device": device}),
            }
        )
        assert machine(meta) == f"{ahead}Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz, 2 cores, 8 GiB RAM"


def test_the_first_screen_says_what_a_variant_is(run):
    said = f"roseinfer (-mp async admit): {ABOUT}"
    assert said in terms(run) and summary(run).count(said) == 1
    empty = run.results.model_copy(update={"summaries": []})
    assert terms(replace(run, results=empty)) == [said]


def test_variants_of_which_the_same_is_said_are_named_together(run):
    first, second = run.meta.launches[:2]
    same = [launch.model_copy(update={"about": "Reuses prefixes."}) for launch in (first, second)]
    meta = run.meta.model_copy(update={"launches": same})
    empty = run.results.model_copy(update={"meta": meta, "summaries": []})
    assert terms(replace(run, results=empty)) == [f"{first.label} and {second.label}: Reuses prefixes."]


@pytest.mark.parametrize(("repeats", "kind"), [(1, "warn"), (3, "note"), (5, "good")])
def test_batches_say_how_often_they_ran_and_that_nobody_checked_answers(tmp_path, repeats, kind):
    run = load_run(make_offline(tmp_path / "offline", repeats))
    assert "The answers were not checked." in {notice.title for notice in notices(run)}
    found = badges(run)
    assert ("warn", "answers unchecked") in {(badge.kind, badge.text) for badge in found}
    [badge] = [badge for badge in found if "repeat" in badge.text]
    assert (badge.kind, badge.text) == (kind, f"{repeats} repeat{'s' * (repeats > 1)}")
    assumed = any("20 % in rates" in notice.detail for notice in badge.notices)
    assert assumed == (repeats == 1)
