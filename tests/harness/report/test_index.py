"""The index of reports: which engine for what, by the raw tables of their runs."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from html import escape, unescape
from pathlib import Path

import pytest

from harness.report.findings import FINDINGS, findings
from harness.report.index import _entry, _groups, answer_of, caveat, write_index
from harness.report.render import write_report
from harness.report.tables.offline import batch_ratios_table
from harness.report.text.verdict import verdict
from harness.runs.reader import Run, load_run
from harness.schema.cell_notice import CellNotice
from harness.schema.fairness import AnswerCheck, AnswerChecks
from tests.harness.offline_runs import write_run

from .conftest import Engine, make_online

ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "reports"


FAST, SLOW = Engine("roseinfer", "roseinfer", 0.004, 0.001), Engine("vllm", "vLLM", 0.09, 0.012)


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> Path:
    """Two engines far apart at two loads; at the heavier one requests of the slow one fail."""
    folder = tmp_path_factory.mktemp("index") / "run"
    return make_online(folder, engines=[FAST, SLOW], scales=[0.4, 0.8], repeats=3, n=110)


def text(page: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", page)))


@pytest.fixture(scope="module")
def report(compared, tmp_path_factory) -> Path:
    return write_report([compared], tmp_path_factory.mktemp("reports") / "a b.html")


def test_a_finding_names_the_engine_that_the_verdict_names(compared):
    run = load_run(compared, trust=True)
    light, heavy = findings(run)[0].answers, findings(run)[-1].answers
    assert [answer.engine for answer in light] == ["roseinfer", "roseinfer"]
    first, second, *_ = verdict(run)
    assert re.search(r"\(scale 0\.8\), the heaviest load at which two .* valid, roseinfer has a TTFT", first)
    assert "roseinfer has a TPOT" in second
    assert [answer.engine for answer in heavy] == ["", ""] and heavy[0].detail.startswith("roseinfer alone")


def test_there_is_a_finding_for_every_load_and_it_says_what_is_invalid(compared):
    light, heavy = findings(load_run(compared, trust=True))
    assert light.validity == "2 engines, valid; answers not checked" and light.repeats == 3
    run = load_run(compared, trust=True)
    assert light.seconds == pytest.approx(min(s.duration_s for s in run.repeats if s.load.value == 0.8), 0.1)
    assert heavy.validity.startswith("invalid: vLLM: ")


def test_a_finding_says_that_answers_are_unchecked_and_gpus_slowed_down(compared):
    run = load_run(compared, trust=True)

    def validity(texts: dict[str, str], checks: AnswerChecks | None) -> str:
        summaries = [
            summary.model_copy(
                update={"notices": [CellNotice(kind="throttled", text=texts[summary.label])]}
                if summary.label in texts
                else {}
            )
            for summary in run.results.summaries
        ]
        results = run.results.model_copy(update={"summaries": summaries, "answers": checks})
        return findings(replace(run, results=results))[0].validity

    text = "GPU 0 lowered its clocks: {} in 50 % of the samples"
    capped, hot = text.format("power cap"), text.format("thermal (software)")
    same, unknown = (
        AnswerChecks(
            rule="",
            reference=None,
            checks=[AnswerCheck(engine="vllm", label="vLLM", verdict=verdict, answers=[])],
        )
        for verdict in ("same", "unknown")
    )
    assert validity({}, None) == "2 engines, valid; answers not checked"
    assert validity({}, same) == "2 engines, valid"
    assert validity({}, unknown) == "2 engines, valid; answers of vLLM not checked"
    assert validity({"roseinfer": capped, "vLLM": capped}, same) == "2 engines, valid; GPU power-capped"
    assert validity({"vLLM": capped}, same) == "2 engines, valid; GPU power-capped for vLLM"
    assert validity({"vLLM": hot}, same) == "2 engines, valid; GPU slowed down for vLLM"


def test_a_winner_of_a_moment_says_how_little_was_measured(tmp_path):
    rates = {"roseinfer": (2000.0,), "vLLM": (500.0,)}
    run = load_run(write_run(tmp_path / "run", rates))  # 128 tokens
    [finding] = findings(run)
    assert caveat(finding) == "1 repeat of 0.064 s"
    assert caveat(replace(finding, seconds=30.0, repeats=3)) == ""
    table = batch_ratios_table(run.results)
    [row] = table.lines
    assert row[table.headers.index("p")] == "< 0.001"


def test_a_report_carries_its_findings_and_the_index_shows_them(compared, report):
    found = findings(load_run(compared, trust=True))
    head = report.read_text(encoding="utf-8")[:65536]
    carried = re.search(r'name="rosebench-findings" content="([^"]*)"', head)
    assert FINDINGS.validate_json(unescape(carried[1])) == found
    (report.parent / "other.html").write_text("<title>something else</title>")
    page = write_index(report.parent).read_text(encoding="utf-8")
    assert 'href="a%20b.html"' in page and "other.html" not in page and "index.html" not in page
    for finding in found:
        assert finding.load in text(page) and finding.validity in text(page)
        assert all(answer.detail in text(page) for answer in finding.answers)
    assert write_index(report.parent).read_text(encoding="utf-8") == page


def test_an_older_report_is_answered_by_the_run_beside_it(compared, report, tmp_path):
    page = report.read_text(encoding="utf-8")
    old = re.sub(r'<meta name="rosebench-findings"[^>]*>\n', "", page)
    assert old != page
    for name in ("kept", "lost"):
        (tmp_path / f"{name}.html").write_text(old, encoding="utf-8")
    (tmp_path / "kept").symlink_to(compared)
    index = write_index(tmp_path).read_text(encoding="utf-8")
    assert re.findall(r'<td data-head="measured"><a href="([^"]*)">', index) == ["kept.html"] * 2
    known, _, unknown = index.partition('id="earlier"')
    assert "lost.html" in unknown and "lost.html" not in known and "kept.html" not in unknown


def test_the_published_index_is_what_the_command_writes(tmp_path):
    for path in PUBLISHED.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "index.html").unlink()
    written, published = (
        path.read_text(encoding="utf-8").partition("<body>")[2]
        for path in (write_index(tmp_path), PUBLISHED / "index.html")
    )
    assert written == published, "run `bench report` in the root of the repository"


def test_what_was_measured_of_a_model_stands_together(compared, report, tmp_path):
    page = report.read_text(encoding="utf-8")
    found = findings(load_run(compared, trust=True))[:1]
    shown = ["qwen3-8b, bf16, cuda", "gpt2, fp16", "qwen3-8b with random weights, bf16"]
    for day, model in enumerate(shown):
        carried = escape(FINDINGS.dump_json([replace(found[0], model=model)]).decode())
        head = re.sub('(?<=name="rosebench-made" content=")[^"]*', f"2026-11-0{9 - day}", page)
        before, _, after = head.partition('name="rosebench-findings" content="')
        made = f'{before}name="rosebench-findings" content="{carried}"{after.partition(chr(34))[2]}'
        (tmp_path / f"{day}.html").write_text(made, encoding="utf-8")
    index = write_index(tmp_path).read_text(encoding="utf-8")
    headings = re.findall(r"<summary><bdi>([^<]*)", index)
    assert headings == [shown[0], shown[2], shown[1]]


def test_a_load_of_several_runs_is_named_with_its_run(compared, report, tmp_path):
    shutil.copy(report, tmp_path / "a.html")
    assert "<small>a</small>" not in write_index(tmp_path).read_text(encoding="utf-8")
    [group] = _groups([_entry(tmp_path / "a.html")])
    assert not group.is_of_several_runs
    other = replace(group, rows=[*group.rows, (replace(group.rows[0][0], made="2026-01-01"), "b.html")])
    assert other.is_of_several_runs


def test_a_row_has_the_best_engine_of_each_percentile_and_how_the_others_compare(compared, report):
    run = load_run(compared, trust=True)
    light, heavy = findings(run)
    answer = answer_of(light, "TTFT")
    assert answer is not None
    assert [standing.statistic for standing in answer.standings] == ["p50", "p90", "p99"]
    values = {s.label: s.value("ttft_ms", "p90") for s in run.pooled if s.load.value == 0.8}
    best = answer.standings[1]
    assert best.engine == "roseinfer" and best.value == f"{values['roseinfer']:.1f} ms"
    assert [other.engine for other in best.others] == ["vLLM"] and best.others[0].differs
    times = float(best.others[0].ratio.removesuffix("×"))
    assert times == pytest.approx(values["vLLM"] / values["roseinfer"], 0.01)
    assert answer_of(heavy, "TTFT") is None  # of which one engine is valid
    page = text(write_index(report.parent).read_text(encoding="utf-8"))
    glance = page.partition("At a glance")[2].partition("validity")[0]
    assert f"p90 roseinfer {best.value} · vLLM {best.others[0].ratio}" in glance
    assert "vLLM invalid" in glance and "not compared" in glance and "answers not checked" in glance


def test_a_difference_that_is_not_significant_says_so(tmp_path):
    alike = Engine("sglang", "SGLang", FAST.prefill_s, FAST.step_s)
    folder = make_online(
        tmp_path / "run", engines=[FAST, alike], scales=[0.4], repeats=3, n=110, faults=False
    )
    [finding] = findings(load_run(folder, trust=True))
    answer = answer_of(finding, "TPOT")
    assert answer is not None and not answer.engine
    [other] = answer.standings[0].others
    assert not other.differs and other.ratio.startswith("1.")
    write_report([folder], tmp_path / "report.html")
    page = write_index(tmp_path).read_text(encoding="utf-8").partition("At a glance")[2]
    glance = text(page.partition("</table>")[0])
    assert f"{other.engine} {other.ratio} n.s." in glance
    assert "<strong>" not in page.partition("</table>")[0]


def test_a_search_says_what_each_engine_carries(tmp_path):
    name = "cpu-amx-smollm2-135m-search"
    run = load_run(PUBLISHED / name, trust=True)
    assert isinstance(run, Run) and run.results.search is not None
    [finding] = findings(run)
    limits = "TTFT p90 ≤ 1.5 s and TPOT p90 ≤ 100 ms"
    assert finding.load == f"most requests in flight within {limits}, 128 tokens in, 64 out"
    assert f"Within {limits}, {finding.carried}" == " ".join(verdict(run))
    assert finding.validity == "4 engines, valid; machine disturbed for vLLM and transformers"
    assert finding.measured == "3 starts, cells of 30.2 s" and caveat(finding) == finding.caveats[0]

    shutil.copy(PUBLISHED / f"{name}.html", tmp_path)
    page = text(write_index(tmp_path).read_text(encoding="utf-8")).replace(chr(160), " ")
    glance, _, below = page.partition("A difference counts")
    assert finding.carried in glance and "not compared" not in glance
    assert finding.carried in below and "load within the limits validity measured" in below

    found, *others = run.results.search.engines
    first = found.trials[0].model_copy(update={"met": None})
    once = found.model_copy(update={"trials": [first, *(t for t in found.trials[1:] if not t.start)]})
    search = run.results.search.model_copy(update={"engines": [once, *others]})
    results = run.results.model_copy(update={"search": search})
    [less] = findings(replace(run, results=results))
    assert less.judged == f"4 engines, 1 of {sum(len(e.trials) for e in search.engines)} cells invalid"
    assert caveat(less).endswith("; 1 start, cells of 30.2 s")
    lost = found.model_copy(update={"trials": [], "value": None, "low": None, "high": None})
    search = search.model_copy(update={"engines": [lost, *others]})
    [fewer] = findings(replace(run, results=results.model_copy(update={"search": search})))
    assert fewer.validity.startswith("3 engines, valid") and "roseinfer" not in fewer.engines
    assert fewer.measured == finding.measured
    unmeasured = results.model_copy(update={"summaries": []})
    assert findings(replace(run, results=unmeasured)) == []


def test_a_rate_has_one_line_and_others_have_less(tmp_path):
    rates = {"roseinfer": (2000.0, 2010.0, 1990.0), "vLLM": (500.0, 505.0, 495.0)}
    run = load_run(write_run(tmp_path / "run", rates))
    [finding] = findings(run)
    [standing] = finding.answers[0].standings
    assert (standing.statistic, standing.engine) == ("", "roseinfer")
    assert [(other.engine, other.ratio, other.differs) for other in standing.others] == [
        ("vLLM", "0.25×", True)
    ]


def test_an_engine_that_is_not_compared_is_named_beside_the_best_one(tmp_path):
    failing = Engine("sglang", "SGLang", 0.09, 0.012)
    folder = make_online(tmp_path / "run", engines=[FAST, SLOW, failing], scales=[0.4], repeats=3, n=110)
    run = load_run(folder, trust=True)
    cells = [s.model_copy(update={"valid": s.label != "SGLang"}) for s in run.results.summaries]
    changed = replace(run, results=run.results.model_copy(update={"summaries": cells}))
    [finding] = findings(changed)
    assert finding.invalid == ("SGLang",)
    assert caveat(finding).startswith("SGLang invalid; 3 repeats of ")
