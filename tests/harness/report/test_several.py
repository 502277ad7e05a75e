"""Several runs in one report, and stored results that are not those of the raw times."""

import json
import re
import shutil
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.files import write_json
from harness.report.notices import notices
from harness.report.render import write_report
from harness.report.several import changes, overview, together
from harness.report.tables.latency import headline_table
from harness.runs.folder import RUN
from harness.runs.reader import load_run, load_runs
from harness.schema.facts import Fact
from harness.schema.load import RequestRate
from harness.schema.results import OnlineResults
from tests.harness.offline_runs import IN_PROCESS, SERVED, write_run

from .conftest import ENGINES, Engine, make_online

pytestmark = pytest.mark.slow

REPORTS = Path(__file__).parents[3] / "reports"
SLOWER = Engine("roseinfer", "roseinfer", 0.03, 0.006)


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    folder = tmp_path_factory.mktemp("several") / "before"
    return make_online(folder, engines=ENGINES[:1], scales=[1.0], repeats=4, n=110, faults=False)


@pytest.fixture(scope="module")
def after(tmp_path_factory):
    folder = tmp_path_factory.mktemp("several") / "after"
    return make_online(folder, engines=[SLOWER], scales=[1.0], repeats=4, n=110, faults=False)


@pytest.fixture(scope="module")
def both(before, after):
    return load_runs([before, after])


def test_a_change_is_found_and_shown(before, after, both, tmp_path):
    (change,) = changes(both)
    assert (change.a, change.b, change.obstacles) == ("before", "after", [])
    (table,) = change.tables
    ttft = next(line for line in table.lines if line[0].startswith("TTFT p50"))
    assert ttft[3].startswith("+") and ttft[5] == "worse"
    page = write_report(load_runs([before, after]), tmp_path / "two.html").read_text(encoding="utf-8")
    assert "roseinfer (2 runs) · rosebench</title>" in page
    assert "roseinfer, scale 1" in page and "A is before, B is after." in page
    assert change.differs and "<details open>\n<summary>Every statistic of each engine and load" in page
    assert re.search(r"roseinfer's TTFT p99 at scale 1 is \+\d+ % \(worse\)", change.verdict)
    assert (
        re.search(r"before: At [\d.]+ requests/s \(scale 1\)", page)
        and "after against before: roseinfer" in page
    )


def test_an_interrupted_run_is_shown_and_not_compared(before, after, tmp_path):
    interrupted = Path(shutil.copytree(after, tmp_path / "interrupted"))
    write_json(interrupted / RUN, load_run(after).meta.model_copy(update={"interrupted": True}))
    (change,) = changes(load_runs([before, interrupted]))
    assert not change.tables and change.obstacles
    page = write_report(load_runs([before, interrupted]), tmp_path / "two.html").read_text(encoding="utf-8")
    assert "interrupted is not compared with before" in page


def test_a_change_of_batches_is_found_and_shown(before, tmp_path):
    runs = [
        write_run(tmp_path / name, {SERVED: rates, IN_PROCESS: (100.0, 131.0, 82.0)})
        for name, rates in (("old", (100.0, 131.0, 82.0)), ("new", (90.1, 118.0, 73.6)))
    ]
    other = write_run(tmp_path / "other", {SERVED: (1.0,)}, num_prompts=9)
    change, refused = changes(load_runs([before, *runs, other]))
    assert (change.a, change.b, change.differs) == ("old", "new", True)
    assert change.verdict == (
        "roseinfer's output tok/s in a batch of 8 prompts is -10 % (worse); 2 comparisons in all."
    )
    assert [table.title for table in change.tables] == [
        f"{name}, batch of 8 prompts" for name in (SERVED, IN_PROCESS)
    ]
    assert not refused.tables and "num-prompts differ: A has 8, B has 9" in refused.obstacles
    page = write_report(load_runs(runs), tmp_path / "two.html").read_text(encoding="utf-8")
    assert "new against old: roseinfer" in page and f"{SERVED}, batch of 8 prompts" in page
    nothing = write_run(tmp_path / "nothing", {SERVED: (1.0,)}, failed=[(SERVED, 0)])
    assert changes(load_runs([runs[0], nothing])) == []


def test_the_loads_of_several_runs_stand_on_one_axis(both, tmp_path):
    found = together(both)
    assert list(found.styles) == ["roseinfer, before", "roseinfer, after"]
    runs = [
        make_online(
            tmp_path / str(count), engines=ENGINES[::2], closed=[count], repeats=1, n=100, faults=False
        )
        for count in (1, 8)
    ]
    found = together(load_runs(runs))
    assert list(found.styles) == ["vLLM", "roseinfer"]
    assert [name for _, name in found.charts.first[0].x.ticks] == ["1", "8"]
    assert all(len(series.x) == 2 for series in found.charts.first[0].series if series.part == "p99")
    assert [sentence.partition(",")[0] for sentence in found.verdicts] == [
        "1: With 1 request in flight", "8: With 8 requests in flight",
    ]  # fmt: skip
    assert not together([both[0], load_run(runs[0])]).charts.first  # a trace, and a closed loop


def test_runs_are_named_by_their_folders_and_what_differs_is_said(before, tmp_path):
    folder = shutil.copytree(before, tmp_path / before.name)
    path = folder / "online_results.json"
    results = OnlineResults.model_validate_json(path.read_bytes())
    versions = results.meta.versions.model_copy(update={"git_rev": f"{'a1' * 20}-dirty"})
    launches = [results.meta.launches[0].model_copy(update={"version": "0.3.0"})]
    meta = results.meta.model_copy(update={"versions": versions, "launches": launches})
    path.write_text(results.model_copy(update={"meta": meta}).model_dump_json())
    runs = load_runs([before, folder])
    found = together(runs)
    assert found.names == ["before (1)", "before (2)"]
    assert list(found.styles) == ["roseinfer, before (1)", "roseinfer, before (2)"]
    assert found.differing == ["roseinfer 0.1.0", "commit a1a1a1a1a1a1-dirty · roseinfer 0.3.0"]
    (change,) = changes(runs)
    assert (change.a, change.b) == ("before (1)", "before (2)")


def test_runs_that_do_not_measure_the_same_are_not_compared(before, tmp_path):
    other = make_online(tmp_path / "other", engines=ENGINES[:1], scales=[1.0], repeats=1, n=60, faults=False)
    (change,) = changes(load_runs([before, other]))
    assert not change.tables and any(reason.startswith("requests differ:") for reason in change.obstacles)


def test_the_request_rates_that_runs_have_in_common_are_compared(tmp_path):
    rates = {"a": [1, 2], "b": [2, 3], "c": [3]}
    runs = [
        make_online(tmp_path / name, engines=ENGINES[:1], rates=rate, repeats=1, n=60, faults=False)
        for name, rate in rates.items()
    ]
    with_b, with_c = changes(load_runs(runs))
    (table,) = with_b.tables
    assert table.title == "roseinfer, 2 requests/s (poisson); latencies in ms"
    assert not with_c.tables and with_c.obstacles[0] == "no engine has a load that is in both runs"


def test_answers_of_one_token_have_no_chart_of_the_time_between_tokens(tmp_path):
    folder = make_online(
        tmp_path / "short", engines=ENGINES[:2], scales=[1.0], repeats=1, n=120, longest=1, faults=False
    )
    run = load_run(folder)
    found = together([run, run])
    assert [chart.name for chart in found.charts.first] == ["ttft_p99"]
    (tmp_path / "short" / "journal.jsonl").write_text("")
    assert write_report(load_runs([folder, folder]), tmp_path / "two.html").is_file()
    assert not any("needs 10 requests" in note for note in headline_table(run.pooled, {}).notes)


def test_requests_and_sessions_are_not_on_one_axis(before, tmp_path):
    folder = make_online(tmp_path / "requests", engines=ENGINES[:1], rates=[2], repeats=1, n=60, faults=False)
    runs = [load_run(folder), load_run(folder)]
    assert together(runs).charts.first
    for summary in runs[1].results.summaries:
        summary.load = RequestRate(req_per_s=2, of="sessions")
    assert not together(runs).charts.first


def test_the_verdict_of_a_search_assumes_nothing_about_repeats(before):
    searched = load_run(REPORTS / "cpu-amx-smollm2-135m-search", trust=True)
    _, second = together([load_run(before, trust=True), searched]).verdicts
    assert "roseinfer carries" in second and "One repeat" not in second


def test_all_runs_stand_in_one_table(before, both, tmp_path):
    other = make_online(
        tmp_path / "other", engines=ENGINES[:2], closed=[8, 1], repeats=1, n=100, faults=False
    )
    runs = [both[0], load_run(other), both[1]]
    table, labels = overview(runs), [engine.label for engine in ENGINES[:2]]
    assert [(row[0].text, row[1].text, row[2].text) for row in table.rows] == [
        ("roseinfer", "before", "scale 1"),
        ("roseinfer", "after", "scale 1"),
        *((label, "other", load) for load in ("1 in flight", "8 in flight") for label in labels),
    ]
    assert table.rows[1][8].value == runs[2].pooled[0].output_tok_per_s
    assert overview(runs[:1]) is None
    page = write_report(load_runs([before, other]), tmp_path / "two.html").read_text(encoding="utf-8")
    assert (
        "All online runs, p50/p90/p99" in page
        and "<summary>other is not compared with before</summary>" in page
    )


def test_a_run_against_itself_is_nothing(before):
    run = load_run(before)
    assert changes([run, run]) == [] == changes([run])


def test_stored_results_that_the_raw_times_do_not_give(before, tmp_path):
    folder = shutil.copytree(before, tmp_path / "run")
    assert load_run(folder).disagreements == []
    path = folder / "online_results.json"
    results = OnlineResults.model_validate_json(path.read_bytes())
    wrong = results.summaries[0].model_copy(update={"req_per_s": 999.0, "notices": [Fact(kind="unreported")]})
    path.write_text(
        results.model_copy(update={"summaries": [wrong, *results.summaries[1:]]}).model_dump_json()
    )
    run = load_run(folder)
    assert run.repeats[0].req_per_s != 999
    assert run.disagreements == [
        f"roseinfer, scale 1, repeat 1, req_per_s: stored 999, computed {run.repeats[0].req_per_s:.6g}"
    ]
    assert notices(run)[0].kind == "stored_differently"


def test_settings_of_another_version_are_refused(before, tmp_path):
    folder = shutil.copytree(before, tmp_path / "run")
    path = folder / "online_results.json"
    results = json.loads(path.read_bytes())
    results["meta"]["settings"]["no such"] = 1
    path.write_text(json.dumps(results))
    with pytest.raises(UsageError, match="not as this version of bench writes it"):
        load_run(folder)
