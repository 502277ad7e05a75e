"""A third-party package adds an engine, a metric and a trace format, without a change here."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner, Result

from harness import plugins
from harness.cli.commands import app
from harness.engines import registry, variants
from harness.engines.local import LocalEngine
from harness.errors import UsageError
from harness.traces.format import GROUP
from tests.harness import bench_process
from tests.harness.bench_process import SEVERAL
from tests.harness.report.conftest import ENGINES, make_online

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "docs" / "examples" / "toy"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the package is unpacked into, built as a distribution of its own."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    shutil.copytree(
        PACKAGE, source / "toy", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    )
    build = "import sys, setuptools.build_meta as backend; backend.build_wheel(sys.argv[1])"
    command = [sys.executable, "-c", build, str(target)]
    subprocess.run(command, cwd=source / "toy", check=True, capture_output=True, timeout=300)
    [wheel] = target.iterdir()
    shutil.unpack_archive(wheel, target, "zip")
    return target


#: What `bench` in this process finds made quick, and of a run's figures the package's alone.
QUICK = f"""
import runpy
from harness.report import figures as drawn
runpy.run_path({bench_process.__file__!r})["quicken"]()
drawn.figures = lambda run, charts: [
    drawn.plot("ttst", [charts.by_load["ttst_ms"]], drawn.looks(run.engines))
]
"""
LIST, SHOW, MISSPELT = "engines list", "engines show toy@quick", "online --engines roseinfer,toi"
SCHEMA, GATE = "schema online-results", "ttst_p50<=100000s, prompt_tok_per_s>=0.001"


@dataclass
class Shown:
    """How commands end with the package, what they print and what they say; a run that the package's metric
    came after, and the page that one of them made of it; a run of both variants of the engine on a trace in
    the package's format, and the command that compared them."""

    ended: dict[str, tuple[int, str, str]]
    older: Path
    older_page: Path
    report: tuple[int, str, str]
    run: Path
    gated: tuple[int, str, str]


@pytest.fixture(scope="module")
def shown(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """All in one process, in an empty folder."""
    out, empty = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("empty")
    (out / "mine.csv").write_text("when,prompt,answer\n" + "".join(f"{i / 50},8,6\n" for i in range(12)))
    online = [
        "online", "--engines", "toy,toy@quick", "--model", "random:gpt2-tiny", "--device", "cpu",
        "--trace", str(out / "mine.csv"), "--scales", "1", "--repeats", "2", "--max-model-len", "64",
        "--slo", "ttst_ms=500", "--warmup", "2", "--no-calibrate", "--no-check-answers", "--out", str(out),
    ]  # fmt: skip
    older = make_online(out / "older", engines=ENGINES[::2], closed=(4,), repeats=2, n=60, faults=False)
    page, run = out / "older.html", str(out / "online_*")
    compare = ["compare", run, run, "--engine-a", "toy", "--engine-b", "toy@quick", "--gate", GATE]
    compare += ["--allow-different", "invalid", "--json"]
    texts = (LIST, SHOW, MISSPELT, SCHEMA)
    commands = [*map(str.split, texts), ["report", str(older), "--out", str(page)], online, compare]
    done = subprocess.run(
        [sys.executable, "-c", QUICK + SEVERAL], cwd=empty, input=json.dumps(commands),
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(installed)])},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *short, report, measured, gated = [(code, out, err) for code, out, err in json.loads(done.stdout)]
    assert measured[0] == 0, measured
    (folder,) = out.glob("online_*")
    return Shown(dict(zip(texts, short, strict=True)), older, page, report, folder, gated)


def without(*arguments: str | Path) -> Result:
    """`bench` in this process, which does not have the package."""
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.fixture(scope="module")
def run(shown: Shown) -> Path:
    return shown.run


def test_the_engine_is_listed_with_its_version_and_variants(shown: Shown) -> None:
    code, listed, _ = shown.ended[LIST]
    assert code == 0
    assert any({"toy", "1.2.3", "quick"} <= {*line.split()} for line in listed.splitlines())
    assert "rosebench_toy.server" in shown.ended[SHOW][1]
    code, _, error = shown.ended[MISSPELT]
    assert code == 2 and "did you mean toy?" in error
    refused = without("engines", "show", "toy").exception
    assert isinstance(refused, UsageError) and "there is no engine 'toy'" in refused.message


def test_the_results_have_the_engine_and_the_metric(run: Path) -> None:
    results = json.loads((run / "online_results.json").read_text())
    toy, quick = ([summary for summary in results["summaries"]
                   if summary["label"] == label and summary["repeat"] is None]
                  for label in ("Toy", "Toy (quick)"))  # fmt: skip
    found = toy[0]
    assert (found["num_success"], found["num_error"], found["ttst_ms"]["n"]) == (24, 0, 24)
    assert found["ttft_ms"]["p50"] < found["ttst_ms"]["p50"] < found["e2e_ms"]["p50"]
    assert quick[0]["ttst_ms"]["n"] == 24
    assert found["goodput_req_per_s"] == found["req_per_s"]
    tokens_of_each = (found["prompt_tokens"] / 24, found["prompt_tok_per_s"] / found["req_per_s"])
    assert tokens_of_each[0] == pytest.approx(tokens_of_each[1])
    low, high = found["rates_ci"]["prompt_tok_per_s"]
    assert low < found["prompt_tok_per_s"] < high
    compared = {comparison["metric"] for comparison in results["comparisons"]}
    assert compared >= {"ttft_ms", "ttst_ms", "prompt_tok_per_s"}
    assert results["meta"]["trace"]["requests"] == 12


def test_the_report_shows_them(run: Path) -> None:
    page, summary = (run / "report.html").read_text(), (run / "summary.md").read_text()
    assert "time to second token" in page and "t_2 − t_sent" in page
    assert "#c2476a" in page  # the engine's own colour
    assert "## TTST (ms)" in summary
    assert "A token each millisecond." in page and "Toy (quick): A token each millisecond." in summary
    assert (run / "figures" / "ttst.svg").is_file()
    assert "Prompt tokens of successful requests a second." in page
    [throughput] = [line for line in summary.splitlines() if "total tok/s" in line and "failed" in line]
    assert "prompt tok/s" in throughput
    with (run / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    for metric, statistic in (("ttst_ms", "p50"), ("prompt_tok_per_s", "value")):
        labels = {row["label"] for row in rows if (row["metric"], row["statistic"]) == (metric, statistic)}
        assert labels == {"Toy", "Toy (quick)"}


def test_gates_take_the_metric(shown: Shown) -> None:
    code, out, _ = shown.gated
    found = json.loads(out)
    gated, rate = found["gates"]
    assert rate["outcome"] == "pass" and rate["gate"] == "prompt_tok_per_s>=0.001", rate
    assert gated["gate"] == "ttst_p50<=100000s" and 0 < gated["value"] < 100_000, gated
    # On a busy machine the interval of two repeats of 12 requests can be as wide as the limit.
    assert (found["outcome"], code) in {("pass", 0), ("inconclusive", 2)}, gated
    assert {difference["metric"] for difference in found["differences"]} >= {"ttst_ms", "prompt_tok_per_s"}


def test_the_schema_lists_the_metric(shown: Shown) -> None:
    assert all(name in shown.ended[SCHEMA][1] for name in ('"ttst_ms"', '"prompt_tok_per_s"'))
    ours = without("schema", "online-results").stdout
    assert '"ttft_ms"' in ours and '"ttst_ms"' not in ours and '"prompt_tok_per_s"' not in ours


def test_a_limit_on_a_metric_that_is_not_installed_is_told(run: Path, tmp_path: Path) -> None:
    refused = without("report", run, "--out", tmp_path / "r.html").exception
    assert isinstance(refused, UsageError) and "there is no ttst_ms to limit" in refused.message


def test_the_run_is_reported_where_the_package_is_not_installed(run: Path, tmp_path: Path) -> None:
    """The engine is drawn in the next colour of the palette; the metric is left out."""
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    results = json.loads((copy / "online_results.json").read_text())
    results["meta"]["settings"]["slo"] = None
    for summary in results["summaries"]:
        summary["goodput_req_per_s"] = summary["slo_met"] = None
        summary["rates_ci"].pop("goodput_req_per_s", None)
    (copy / "online_results.json").write_text(json.dumps(results))
    (copy / "run.json").write_text(json.dumps(results["meta"]))
    done = without("report", copy, "--out", tmp_path / "r.html")
    assert done.exit_code == 0, done.output
    page = (tmp_path / "r.html").read_text()
    assert "Toy (quick)" in page and "#4f8fa8" in page
    assert "time to second token" not in page and "not those of the raw times" not in page


def test_a_metric_that_came_after_a_run_does_not_change_its_verdicts(shown: Shown, tmp_path: Path) -> None:
    """The metric has a table; the comparisons are those that the run made, corrected for as many."""
    pages = {False: tmp_path / "without.html", True: shown.older_page}
    assert without("report", shown.older, "--out", pages[False]).exit_code == 0
    assert shown.report[0] == 0, shown.report
    said = []
    for plugin, page in pages.items():
        text = page.read_text()
        assert ("time to second token" in text) == plugin
        assert "not those of the raw times" not in text
        said.append(re.findall(r"after correction for \d+ comparisons", text))
    assert said[0] and said[0] == said[1]


@pytest.mark.parametrize(("group", "name"), [(variants.GROUP, "vllm"), (GROUP, "azure")])
def test_a_checkout_has_its_own_plugins_whatever_is_installed(group, name, monkeypatch):
    of_old_version = SimpleNamespace(
        name="old", value="no_such_module:X", dist=SimpleNamespace(name="rosebench")
    )
    monkeypatch.setattr(plugins, "entry_points", lambda group: [of_old_version])
    points = plugins.find_plugins(group)
    assert name in points and "old" not in points


def test_a_name_that_is_taken_and_what_cannot_be_imported_are_refused(monkeypatch):
    other = EntryPoint("vllm", "somebody.engine:Vllm", variants.GROUP)
    ours = plugins.find_plugins(variants.GROUP)["vllm"]
    monkeypatch.setattr(plugins, "entry_points", lambda group: [ours, other])
    with pytest.raises(UsageError, match="has the name of vllm"):
        plugins.find_plugins(variants.GROUP)
    with pytest.raises(UsageError, match=r"vllm \(somebody\.engine:Vllm\) cannot be loaded"):
        plugins.load_plugin(other)


class Half(LocalEngine):
    """An engine without a display name, packages and methods."""

    name = "half"
    install = "pip install half"


class Named(Half):
    """An engine without methods."""

    name, display, distributions = "named", "Named", ("named",)


@pytest.mark.parametrize(
    ("kind", "fault"),
    [(Half, "has no display and no distributions"), (Named, "cannot be used: .*abstract method")],
)
def test_what_an_engine_lacks_is_named(kind: type[LocalEngine], fault: str) -> None:
    with pytest.raises(UsageError, match=rf"\(.*:{kind.__name__}\) {fault}") as raised:
        registry._load(EntryPoint(kind.name, f"{__name__}:{kind.__name__}", variants.GROUP))
    assert raised.value.hint == "correct or uninstall its package"
