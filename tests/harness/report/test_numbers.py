"""Every number of the page and of the plots, against plain pandas over the parquet files."""

import csv
import io
import json
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from harness.records.parquet import read_records
from harness.report.charts.run_charts import charts
from harness.report.render import write_report
from harness.runs.reader import load_run, load_runs

from .conftest import ENGINES, SCALES, make_online

pytestmark = pytest.mark.slow

METRICS = {"TTFT (ms)": "ttft_ms", "TPOT (ms)": "tpot_ms", "ITL (ms)": "itl_ms", "E2E (ms)": "e2e_ms"}
#: One that gives a token a chunk, with failures, and one that gives several.
MEASURED = ENGINES[2:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_online(tmp_path_factory.mktemp("numbers") / "run", engines=MEASURED, repeats=2, n=120)


def scale_of(load):
    return json.loads(load)["scale"]


@pytest.fixture(scope="module")
def raw(folder):
    """Samples of each metric by label and scale, from the parquet files alone."""
    requests = read_records(folder).requests
    chunks = read_records(folder).chunks
    requests["scale"] = requests["load"].map(scale_of)
    good = requests[requests["error"].isna()].copy()
    good["ttft_ms"] = 1e3 * (good.t_first - good.t_sent)
    good["e2e_ms"] = 1e3 * (good.t_last - good.t_sent)
    chunks = chunks.merge(good[["cell", "request", "label", "scale"]], on=["cell", "request"])
    chunks = chunks.sort_values(["cell", "request", "t"])
    in_first = chunks.groupby(["cell", "request"])["tokens"].first().rename("in_first")
    good = good.join(in_first, on=["cell", "request"])
    after = good.completion_tokens - good.in_first
    good["tpot_ms"] = (1e3 * (good.t_last - good.t_first) / after).where(after > 0)
    chunks["gap"] = 1e3 * chunks.groupby(["cell", "request"])["t"].diff()
    chunks = chunks.dropna(subset="gap")
    token = chunks.loc[chunks.index.repeat(chunks["tokens"])]
    found = {
        (metric, *key): rows[metric].dropna().to_numpy()
        for metric in ("ttft_ms", "tpot_ms", "e2e_ms")
        for key, rows in good.groupby(["label", "scale"])
    }
    return found | {
        ("itl_ms", *key): (rows.gap / rows.tokens).to_numpy()
        for key, rows in token.groupby(["label", "scale"])
    }


class Tables(HTMLParser):
    """The tables of a page: title, then rows of (text, data-value)."""

    def __init__(self, text):
        super().__init__()
        self.found, self._title, self._rows, self._in, self._text = {}, "", [], None, ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag == "div" and attrs.get("class") == "scroll":
            self._title, self._rows = attrs.get("aria-label", ""), []
            self.found[self._title] = self._rows
        if tag == "tr":
            self._rows.append([])
        if tag in ("td", "th"):
            self._in, self._text = attrs.get("data-value"), ""
            self._rows and self._rows[-1].append([None, self._in])
        if tag in ("span", "bdi") and attrs.get("class") == "v":
            self._text = None

    def handle_data(self, data):
        if self._text is None and self._rows and self._rows[-1]:
            self._rows[-1][-1][0] = data
            self._text = ""


@pytest.fixture(scope="module")
def tables(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("page") / "report.html"
    return Tables(write_report(load_runs([folder]), out).read_text(encoding="utf-8")).found


@pytest.mark.parametrize("title", METRICS)
def test_latency_tables(title, tables, raw):
    rows = [row for row in tables[title] if len(row) == 1 + 3 * len(SCALES) and row[0][0]]
    assert len(rows) == len(MEASURED)
    for (label, _), *cells in rows:
        expected = [
            np.percentile(raw[METRICS[title], label, scale], q) for scale in SCALES for q in (50, 90, 99)
        ]
        assert [float(value) for _, value in cells] == pytest.approx(expected, rel=1e-9)
        texts = [float(text.replace(",", "")) for text, _ in cells]
        assert texts == pytest.approx(expected, rel=0.06)


def test_rates_and_failures(tables, folder):
    requests = read_records(folder).requests
    rows = [row for row in tables["Throughput and failures"] if len(row) > 6 and row[0][0]]
    assert len(rows) == len(MEASURED) * len(SCALES)
    for row in rows:
        label, scale = row[0][0], float(row[1][1])
        mine = requests[(requests.label == label) & (requests.load.map(scale_of) == scale)]
        good = mine[mine.error.isna()]
        seconds = sum(cell.t_end.max() - cell.t_sched.min() for _, cell in mine.groupby("cell"))
        rates = [len(good) / seconds, good.completion_tokens.sum() / seconds]
        rates.append((good.completion_tokens.sum() + good.prompt_tokens.sum()) / seconds)
        assert [float(value) for _, value in row[3:6]] == pytest.approx(rates, rel=1e-9)
        counts = [int(text.replace(",", "")) for text, value in row if value and float(value) == len(mine)]
        assert len(mine) in counts


@pytest.fixture(scope="module")
def drawn(folder):
    """The rows of every chart of the page, by its name."""
    found = charts(load_run(folder, trust=True)).every
    return {name: list(csv.DictReader(io.StringIO(chart.csv()))) for name, chart in found.items()}


def test_the_data_of_every_chart(drawn, raw):
    assert all(drawn.values())
    for metric in ("ttft", "tpot", "itl", "e2e"):
        rows = [row for row in drawn[metric] if row["part"] in ("p50", "p90", "p99")]
        assert len(rows) == len(MEASURED) * len(SCALES) * 3
        for row in rows:
            sample = raw[f"{metric}_ms", row["engine"], float(row["note"].removeprefix("scale "))]
            expected = np.percentile(sample, int(row["part"][1:]))
            assert float(row[f"{metric.upper()}, ms"]) == pytest.approx(expected, rel=1e-5)
            assert int(row["n"]) == len(sample)
    for metric, of in (("ttft", "requests"), ("itl", "tokens")):
        for scale in SCALES:
            for row in drawn[f"ecdf_{metric}_scale_{scale:g}"]:
                sample = raw[f"{metric}_ms", row["engine"], scale]
                expected = np.percentile(sample, float(row[f"share of {of}, %"]))
                assert float(row[f"{metric.upper()}, ms"]) == pytest.approx(expected, rel=1e-5)
    for row in drawn["tradeoff_ttft"]:
        sample = raw["ttft_ms", row["engine"], float(row["note"].removeprefix("scale "))]
        assert float(row["TTFT p90, ms"]) == pytest.approx(np.percentile(sample, 90), rel=1e-5)


def test_the_data_of_single_cells(folder, drawn):
    requests = read_records(folder).requests
    first = requests[
        (requests.label == "SGLang") & (requests.load.map(scale_of) == 0.4) & (requests.repeat == 0)
    ]
    lives = pd.DataFrame(drawn["requests_SGLang_scale_0.4"])
    for part, ends in (("until the first token", ("t_sched", "t_first")), ("tokens", ("t_first", "t_last"))):
        bars = lives[lives.part == part]
        for side, name in zip(("low", "high"), ends, strict=True):
            expected = first[name].head(100).to_numpy()
            assert bars[side].astype(float).to_numpy() == pytest.approx(expected, rel=1e-5, abs=1e-5)
    seconds = "seconds since the first arrival"
    points = pd.DataFrame(drawn["timeline_scale_0.4"])
    shown = points[points.engine == "SGLang"]["TTFT, ms"].astype(float)
    assert sorted(shown) == pytest.approx(sorted(1e3 * (first.t_first - first.t_sent)), rel=1e-5)
    line = pd.DataFrame(drawn["in_flight_scale_0.4"])
    line = line[line.engine == "SGLang"][[seconds, "requests in flight"]].astype(float)
    for t, count in line.to_numpy()[1:-1:13]:
        assert count == ((first.t_sent <= t) & (t < first.t_end)).sum()
