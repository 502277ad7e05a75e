"""The HTML file: what it holds, that nothing in it is remote, and that hostile text stays text."""

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.figure import Figure

from harness.errors import UsageError
from harness.metrics.samples import split
from harness.metrics.summary import SummaryInputs, summarize
from harness.report import figures
from harness.report.render import Chapter, write_outputs, write_report, write_without_figures
from harness.report.text.provenance import command_on_one_machine
from harness.runs.reader import load_run, load_runs
from harness.schema.facts import Fact
from harness.schema.metrics import METRICS
from harness.schema.results import OnlineResults, Skipped

from .conftest import ENGINES, info, make_online

pytestmark = pytest.mark.slow

REPORTS = Path(__file__).parents[3] / "reports"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'{{7*7}}"


def test_a_link_to_a_file_is_an_address(tmp_path):
    """A folder may have a name with characters that end the path of an address."""
    (tmp_path / "a #1").mkdir()
    (tmp_path / "a #1" / "trace?.json").touch()
    chapter: Any = SimpleNamespace(run=SimpleNamespace(path=tmp_path / "a #1"), folder=tmp_path)
    assert Chapter.link(chapter, "trace?.json") == "a%20%231/trace%3F.json"
    assert Chapter.link(chapter, "not here") is None


class Page(HTMLParser):
    """Elements with their attributes, ids, and the visible text."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.ids, self.words = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def published(name):
    """A page that test_published.py finds to be what today's code renders."""
    return Page((REPORTS / f"{name}.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small") / "online_small"
    return make_online(folder, engines=ENGINES[::2], scales=[0.5, 1.0], repeats=1, n=120)


@pytest.fixture(scope="module")
def both(small, offline_run, tmp_path_factory):
    return write_report(load_runs([small, offline_run]), tmp_path_factory.mktemp("out") / "both.html")


@pytest.fixture(scope="module")
def page(both):
    return Page(both.read_text(encoding="utf-8"))


def test_the_page_asks_for_nothing(page):
    for tag, attributes in page.elements:
        assert tag not in ("link", "iframe", "object", "embed", "base") or attributes.get("href") == "data:,"
        for name in ("src", "href", "xlink:href", "action", "poster", "srcset"):
            assert attributes.get(name, "#").startswith(("#", "data:")), (tag, attributes)
        assert not any(name.startswith("on") for name in attributes)
    policy = next(a["content"] for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-")


def test_a_latency_that_falls_with_the_load_is_explained_below_its_chart():
    """On a published page: with 8 requests in flight, prompts wait together, with 64 one after the other."""
    section = published("h200-x2-qwen3-32b").text.partition("hollow markers are p99")[2]
    chart = section.partition("All loads in one table")[0]
    assert "lighter load: roseinfer" in chart and "432 ms, and 193 ms" in chart
    assert "7 others, there with 4" in chart


def test_the_table_of_all_loads_says_what_its_marks_and_intervals_are():
    """On a published page of a search, whose loads have different numbers of repeats."""
    all_loads = published("cpu-amx-smollm2-135m-search").text.partition("All loads in one table")[2]
    assert "Marked: better than every valid engine without the mark, at 5 %" in all_loads
    assert "Small print: 95 % intervals; where an engine has one repeat, within it" in all_loads


def test_what_the_intervals_of_an_engine_with_one_repeat_hold_and_a_variant_does_is_said(tmp_path):
    """As in a run that was interrupted."""
    run = load_run(make_online(tmp_path / "online", engines=ENGINES[:2], scales=[1.0], n=20, faults=False))
    run.results.summaries = [s for s in run.results.summaries if s.repeat != 1 or s.label != "roseinfer"]
    text = write_without_figures(run).read_text(encoding="utf-8")
    assert "that between requests; those of one repeat hold the latter alone." in Page(text).text
    assert '<tr><th scope="row">variant</th><td></td><td>Tokenizes texts where HTTP is handled.</td>' in text


def test_ids_are_unique_and_links_lead_somewhere(page):
    assert len(page.ids) == len(set(page.ids))
    targets = {a["href"][1:] for t, a in page.elements if t == "a"}
    assert targets <= set(page.ids)
    labelled = {id for _, a in page.elements for id in a.get("aria-labelledby", "").split()}
    assert labelled <= set(page.ids)


@pytest.fixture(scope="module")
def written(small):
    """The report of a run, written with all that comes with it but the figures."""
    return write_without_figures(load_run(small, trust=True))


def test_the_first_screen_comes_in_order(written):
    text = Page(written.read_text(encoding="utf-8")).text
    order = [
        "azure-conv-2023", "1 of 4 cells invalid", "Requests to vLLM failed.", "answers unchecked",
        "Compare", "Latency by load", "How this was made", "Definitions",
    ]  # fmt: skip
    positions = [text.index(words) for words in order]
    assert positions == sorted(positions)


def test_how_it_was_made_and_what_it_means(page):
    for words in (
        "bench online --engines roseinfer,roseinfer@no-mp-async-admit,vllm --seed 0",
        "python -m vllm serve --model gpt2 --port 0", "CC-BY-4.0", "Splitwise",
        "Intel(R) Xeon(R)", METRICS["itl_ms"].meaning, METRICS["submit_lag_ms"].meaning,
    ):  # fmt: skip
        assert words in page.text, words


def test_a_run_of_a_cluster_has_a_command_for_one_machine():
    meta, config = info("online", ["roseinfer"]), ["bench", "online", "--config", "a.yaml"]
    on_nodes = [*config, "--out", "runs", "--cluster", "auto", "--side-by-side", "2", "--repeats", "4"]
    for words, expected in ((on_nodes, "bench online --config a.yaml --repeats 4"), (config, "")):
        assert command_on_one_machine(meta.model_copy(update={"command": words})) == expected


def test_a_hostile_run_stays_text(small, tmp_path):
    folder = shutil.copytree(small, tmp_path / "<b>run")
    path = folder / "online_results.json"
    results = OnlineResults.model_validate_json(path.read_bytes())
    launches = [
        launch.model_copy(update={"label": HOSTILE, "argv": [HOSTILE], "env": {HOSTILE: HOSTILE},
                                  "inherited": {HOSTILE: HOSTILE}, "settings": {HOSTILE: HOSTILE},
                                  "version": HOSTILE, "about": HOSTILE})
        for launch in results.meta.launches
    ]  # fmt: skip
    trace = dict.fromkeys(("name", "origin", "licence", "citation", "note", "fit"), HOSTILE)
    meta = results.meta.model_copy(
        update={
            "command": ["bench", HOSTILE],
            "created": HOSTILE,
            "settings": results.meta.settings.model_copy(
                update={"model": HOSTILE, "trace": HOSTILE, "max_model_len": 64}
            ),
            "environment": {"cpu": {"model": HOSTILE}, HOSTILE: HOSTILE},
            "launches": launches,
            "trace": results.meta.trace.model_copy(update=trace),
        }
    )
    hostile = Fact(kind="failed_answers", values={"failed": 1, "answers": 1, "detail": HOSTILE})
    summaries = [
        summary.model_copy(update={"errors": {HOSTILE: 1}, "invalid_reasons": [hostile], "valid": False})
        for summary in results.summaries
    ]
    skipped = [Skipped(engine=HOSTILE, label=HOSTILE, reason=HOSTILE, hint=HOSTILE)]
    changed = results.model_copy(update={"meta": meta, "summaries": summaries, "skipped": skipped})
    path.write_text(changed.model_dump_json())
    text = write_without_figures(load_run(folder, trust=True)).read_text(encoding="utf-8")
    assert "alert(1)" in text
    page = Page(text)
    scripts = [attributes.get("type") for tag, attributes in page.elements if tag == "script"]
    assert scripts == ["application/json", None]
    assert not [tag for tag, _ in page.elements if tag in ("img", "b")]
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert "49" not in re.findall(r"alert\(2\)[^a-z]{0,9}", text)
    assert "<script" not in (folder / "summary.md").read_text(encoding="utf-8")


def test_a_hostile_label_stays_text(tmp_path, monkeypatch):
    """Also in the names of files, whose figures are left empty."""
    monkeypatch.setattr(figures, "plot", lambda name, *_: figures.Plot(name, "", "", Figure()))
    engine = type(ENGINES[0])("roseinfer", HOSTILE, 0.01, 0.004)
    folder = make_online(tmp_path / "run", engines=[engine, ENGINES[2]], scales=[1.0], repeats=1, n=40)
    page = Page(write_outputs(load_run(folder, trust=True)).read_text(encoding="utf-8"))
    scripts = [attributes.get("type") for tag, attributes in page.elements if tag == "script"]
    assert scripts == ["application/json", None]
    assert not [tag for tag, _ in page.elements if tag == "img"]
    assert len(list((folder / "figures").glob("*.svg"))) > 9
    assert all(path.is_file() for path in (folder / "figures").iterdir())


def test_the_same_runs_give_the_same_bytes(small, offline_run, both, tmp_path):
    again = write_report(load_runs([small, offline_run]), tmp_path / "b.html")
    assert again.read_bytes() == both.read_bytes()


def test_the_files_of_a_run(small, written):
    assert written == small / "report.html"
    text = (small / "summary.md").read_text(encoding="utf-8")
    assert text.startswith("# gpt2 bf16 · CPU, 2 cores · vLLM / roseinfer")
    assert not list(small.rglob("*.tmp"))


def test_a_run_in_which_nothing_succeeded_still_has_a_report(tmp_path):
    folder = make_online(tmp_path / "run", engines=ENGINES[:1], scales=[1.0], repeats=1, n=20, faults=False)
    run = load_run(folder)
    failed = run.requests.assign(error="connect", completion_tokens=None)
    summaries = summarize(split(failed, run.chunks), SummaryInputs())
    results = run.results.model_copy(update={"summaries": summaries, "comparisons": []})
    (folder / "online_results.json").write_text(results.model_dump_json())
    failed.to_parquet(folder / "requests.parquet")
    page = Page(write_without_figures(load_run(folder, trust=True)).read_text(encoding="utf-8"))
    assert "No request to roseinfer succeeded." in page.text


def test_a_broken_run_writes_nothing(tmp_path):
    with pytest.raises(UsageError):
        write_report(load_runs([tmp_path]), tmp_path / "out.html")
    assert not (tmp_path / "out.html").exists()
