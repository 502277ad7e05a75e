"""Figures: the same bytes each time, valid XML, one look an engine, and the numbers of the results."""

import csv
import io
import itertools
import struct
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from harness.engines.registry import LOCAL
from harness.metrics.samples import split
from harness.report.charts.by_load import by_load, load_axis
from harness.report.charts.chart import Axis, Chart, Limit, Series
from harness.report.charts.looks import looks, on_dark
from harness.report.charts.over_time import in_flight, load_over_time
from harness.report.charts.run_charts import charts
from harness.report.figures import figures, footer, plot
from harness.report.render import write_outputs
from harness.report.text.load_words import axis_number, axis_values
from harness.runs.reader import load_run
from harness.schema.load import ClosedLoop, Ramp, TraceLoad
from harness.schema.metrics import METRICS
from harness.schema.results import OnlineSummary

from .conftest import ENGINES, make_online
from .test_published import REPORTS


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures") / "run"
    return load_run(
        make_online(folder, engines=ENGINES[::2], scales=[0.5, 1.0], repeats=1, n=110, faults=False),
        trust=True,
    )


def all_figures(run):
    return list(figures(run, charts(run)))


@pytest.fixture(scope="module")
def drawn(run):
    return all_figures(run)


def test_every_figure_of_the_contract_is_drawn(drawn):
    names = [plot.name for plot in drawn]
    assert len(names) == len(set(names))
    for metric in ("ttft", "tpot", "itl", "e2e"):
        assert {metric, f"{metric}_p90", f"{metric}_p99", f"ecdf_{metric}_scale_0.5"} <= set(names)
    assert {"overview", "timeline_scale_0.5", "timeline_scale_1"} <= set(names)


def test_a_ramp_is_drawn_over_time_with_its_rate(run):
    [group, *_] = run.groups
    ramp = Ramp(from_req_per_s=1, to_req_per_s=9, seconds=30)
    chart = load_over_time([replace(group, load=ramp)])
    due = next(series for series in chart.series if series.part == "requests/s due")
    assert list(zip(due.x, due.y, strict=True)) == [(0, 1), (30, 9)]
    assert "from 1 to 9 requests/s in 30 s" in chart.title
    assert chart.name.endswith("up_to_requests_per_s_9")
    drawn = plot(chart.name, [chart], looks([(group.engine, group.label)]))
    assert "requests/s due" in drawn.svg
    ElementTree.fromstring(drawn.svg)


def test_a_picture_for_a_slide_says_what_it_is_of(run, drawn):
    said = footer(run)
    assert run.meta.created[:10] in said and said.endswith("rosebench")
    figure = drawn[0].figure
    assert [text.get_text() for text in figure.texts] == [said]
    width, height = struct.unpack(">II", drawn[0].png()[16:24])
    assert width == 1600 and 600 < height < 1600


def test_figures_are_well_formed_and_hold_no_date(drawn):
    for picture in drawn:
        ElementTree.fromstring(picture.svg)
        assert "dc:date" not in picture.svg and "<metadata" not in picture.svg


def test_no_text_lies_over_another_or_beyond_the_figure(drawn):
    search = load_run(REPORTS / "cpu-amx-smollm2-135m-search", trust=True)
    kinds = {plot.name for plot in drawn} - {"frontier"}
    one_of_each = {name.partition("_in_flight")[0]: chart for name, chart in charts(search).every.items()}
    of_search = [
        plot(name, [chart], looks(search.engines)) for name, chart in one_of_each.items() if name not in kinds
    ]
    figure_by_name = {plot.name: plot.figure for plot in (*drawn, *of_search)}
    assert figure_by_name["frontier"].axes[0].texts[0].get_text().startswith("upper right is better")
    for name, figure in figure_by_name.items():
        FigureCanvasAgg(figure)
        figure.draw_without_rendering()
        for axes in figure.axes:
            texts = [axes._left_title, axes.xaxis.label, *axes.texts, *axes.get_xticklabels()]
            boxes = [(t.get_text(), t.get_window_extent()) for t in texts if t.get_text()]
            for text, box in boxes:
                assert box.x0 >= 0 and box.x1 <= figure.bbox.x1, (name, text)
                assert box.y0 >= 0 and box.y1 <= figure.bbox.y1, (name, text)
            for (a, first), (b, second) in itertools.combinations(boxes, 2):
                assert not first.overlaps(second), (name, a, b)


@pytest.mark.parametrize("at", [100.0, 20.0])
def test_the_name_of_a_limit_covers_no_marker(at):
    points = Series("a", "line", [0.0, 0.9], [100.0, at])
    x, y = Axis("load", ends=(-0.1, 1.0)), Axis("ms", ends=(0.0, 200.0))
    chart = Chart("c", "c", x, y, [points], limits=[Limit("y", 95.0, "SLO 95")])
    figure = plot("c", [chart], looks([("roseinfer", "a")])).figure
    FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    [axes] = figure.axes
    name = next(text for text in axes.texts if text.get_text() == "SLO 95").get_window_extent().padded(3)
    marks = axes.transData.transform(list(zip(points.x, points.y, strict=True)))
    assert not any(name.contains(*mark) for mark in marks)
    assert name.x0 > axes.bbox.x1 - 3 and name.x1 < figure.bbox.x1 + 3


def test_the_same_run_gives_the_same_bytes_as_files(run, drawn, monkeypatch):
    """The first figures: all are drawn in the same way."""
    drawn = drawn[:4]
    monkeypatch.setattr("harness.report.figures.figures", lambda *of: itertools.islice(figures(*of), 4))
    report = write_outputs(load_run(run.path, trust=True))
    files = {path.name: path.read_bytes() for path in (report.parent / "figures").iterdir()}
    names = {f"{picture.name}.{suffix}" for picture in drawn for suffix in ("svg", "png", "csv")}
    assert files.keys() == names >= {"overview.svg", "ttft.csv", "ttft_p99.png"}
    for picture in drawn:
        assert files[f"{picture.name}.svg"] == picture.svg.encode()
        assert files[f"{picture.name}.csv"] == picture.data.encode()
    assert not list(run.path.rglob("*.tmp"))


def test_a_closed_loop_is_drawn_by_its_requests_in_flight(tmp_path):
    folder = make_online(tmp_path / "run", engines=ENGINES[::2], closed=[8, 64], repeats=1, n=40)
    loaded = load_run(folder, trust=True)
    drawn = charts(loaded).every
    assert {"ecdf_ttft_in_flight_8", "timeline_in_flight_64", "requests_vLLM_in_flight_64"} <= set(drawn)
    assert not any("scale" in f"{chart.name} {chart.title} {chart.csv()}" for chart in drawn.values())
    assert drawn["ttft"].x.label == "requests in flight" and "64 in flight" in drawn["tradeoff_ttft"].csv()


def test_answers_of_one_token_have_no_time_per_token(tmp_path):
    folder = make_online(tmp_path / "run", engines=ENGINES[::2], scales=[1.0], repeats=1, n=40, longest=1)
    loaded = load_run(folder, trust=True)
    assert [chart.name for chart in charts(loaded).tradeoffs] == ["tradeoff_ttft"]
    first = itertools.islice(figures(loaded, charts(loaded)), 6)
    assert "ttft" in {picture.name for picture in first}


def test_offline_bars(offline_run):
    loaded = load_run(offline_run)
    plots = all_figures(loaded)
    assert [plot.name for plot in plots] == ["offline_output_tok_per_s", "offline_total_s"]
    assert "roseinfer (in-process)" in plots[0].svg
    for picture, metric in zip(plots, ("output_tok_per_s", "total_s"), strict=True):
        ticks = [text.get_text() for text in picture.figure.axes[0].get_xticklabels()]
        assert ticks and not any("e+" in tick for tick in ticks)
        results = [result for result in loaded.results.results if result.label == "vLLM"]
        rates = [getattr(result, metric) for result in results]
        rows = list(csv.DictReader(io.StringIO(picture.data)))
        mean = next(row for row in rows if (row["engine"], row["part"]) == ("vLLM", "mean"))
        assert float(mean[METRICS[metric].unit]) == pytest.approx(sum(rates) / len(rates), rel=1e-5)


def test_text_from_outside_cannot_break_a_figure(run):
    hostile = "<b>&\x00\x1b[31m $\\frac{ \ud800 \u6a21\u578b"
    pooled = [s.model_copy(update={"label": hostile}) for s in run.pooled if s.label == "vLLM"]
    drawn = plot("ttft", [by_load(pooled, "ttft_ms", None)], looks([("vllm", hostile)]))
    texts = [
        node.text or "" for node in ElementTree.fromstring(drawn.svg).iter() if node.tag.endswith("text")
    ]
    assert any(text.startswith("<b>&\\u0000\\u001b[31m $\\frac{") for text in texts)


def offering(scale, load=None):
    fields = {"load": load or TraceLoad(scale=scale), "offered_req_per_s": 8 / scale}
    return OnlineSummary.model_construct(**fields)


def test_scales_that_double_are_evenly_spaced():
    _, at = load_axis([offering(scale) for scale in (1.6, 0.4, 0.8, 0.4)])
    assert [str(load) for load in at] == ["scale 1.6", "scale 0.8", "scale 0.4"]  # heavier to the right
    assert np.diff(list(at.values())) == pytest.approx([1, 1])


def test_scales_that_are_close_get_a_step_each():
    close = [offering(scale) for scale in (1.0, 1.05, 8.0)]
    axis, at = load_axis(close)
    assert list(at.values()) == [0, 1, 2]
    assert "not to scale" in axis.label and "not to scale" not in load_axis(close[1:])[0].label


def test_every_axis_grows_with_the_load(run):
    """A trace is shown by the requests/s that it offers, which a smaller scale makes more."""
    values = list(axis_values(run.pooled).values())
    assert values == sorted(values) and values[0] < values[-1]
    offered = {summary.offered_req_per_s for summary in run.pooled if summary.load == TraceLoad(scale=0.5)}
    assert axis_values(run.pooled)[TraceLoad(scale=0.5)] == pytest.approx(np.mean(list(offered)), rel=1e-3)
    (closed,) = axis_values([offering(1.0, ClosedLoop(concurrency=8))])
    assert axis_number(closed, 8) == "8"


def test_the_contract_s_looks_and_every_label_its_own():
    styles = looks(
        [("roseinfer", "roseinfer"), ("vllm", "vLLM"), ("sglang", "SGLang"), ("trtllm", "TensorRT-LLM")]
        + [("roseinfer", f"roseinfer ({i})") for i in range(3)]
        + [(name, name) for name in ("transformers", "llamacpp", "openai")]
    )
    assert [styles[label].marker for label in ("roseinfer", "vLLM", "SGLang", "TensorRT-LLM")] == list("os^h")
    assert len({(look.color, look.marker, look.line) for look in styles.values()}) == 10
    assert len({look.color for look in styles.values()}) == 10


def test_variants_of_an_engine_differ_in_colour_and_marker():
    styles = list(looks(("roseinfer", f"roseinfer {i}") for i in range(4)).values())
    assert (styles[0].color, styles[0].marker) == ("#0072b2", "o")
    for a, b in itertools.combinations(styles, 2):
        assert a.marker != b.marker
        assert all(np.linalg.norm(oklab(a.color, sight) - oklab(b.color, sight)) > 0.06 for sight in SEEN)


def test_engines_differ_in_marker_or_line_without_any_colour():
    styles = looks([("roseinfer", str(i)) for i in range(4)] + [("vllm", "v"), ("sglang", "s")])
    assert len({(look.marker, look.line) for look in styles.values()}) == 6


def luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot((0.2126, 0.7152, 0.0722), parts))


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
SEEN = {
    "protan": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deutan": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritan": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
LAB = [[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]


def oklab(color, sight):
    parts = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    cones = np.cbrt(np.clip(np.array(LAB) @ np.clip(np.array(SEEN[sight]) @ linear, 0, 1), 0, 1))
    to = [[0.2105, 0.7936, -0.0041], [1.978, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]
    return np.array(to) @ cones


@pytest.mark.parametrize("sight", SEEN)
def test_the_four_engines_differ_to_colour_blind_eyes(sight):
    styles = looks((name, name) for name in ("roseinfer", "vllm", "sglang", "trtllm"))
    for a, b in itertools.combinations(styles.values(), 2):
        assert np.linalg.norm(oklab(a.color, sight) - oklab(b.color, sight)) > 0.06, (a, b)


def test_contrast_on_white_and_on_dark_paper():
    for name in (*LOCAL, "openai", "other"):
        for look in looks((name, f"{name} {i}") for i in range(4)).values():
            assert contrast(look.color, "#ffffff") >= 3
            assert contrast(on_dark(look.color), "#181b1f") >= 2.99


def test_requests_in_flight_are_those_sent_and_not_ended(run):
    group = split(run.requests, run.chunks)[0]
    times, load = in_flight(group)
    sent, ended = group.requests["t_sent"].to_numpy(), group.requests["t_end"].to_numpy()
    for t, count in list(zip(times, load, strict=True))[::17]:
        assert count == ((sent <= t) & (t < ended)).sum()
    never_sent = run.requests.assign(t_sent=run.requests["t_sent"].where(run.requests["request"] > 2))
    load = in_flight(split(never_sent, run.chunks)[0])[1]
    assert load.min() == load[-1] == 0
