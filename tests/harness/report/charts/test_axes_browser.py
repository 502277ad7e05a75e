"""The axes of a report's charts, and the index of reports, in a real browser."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from harness.report.charts.run_charts import charts
from harness.report.figures import axis_ends
from harness.report.render import write_report
from harness.runs.reader import load_run, load_runs

from ..browsing import IN_A_BROWSER, PLOTS, chart, drawn, ends, laid_out, opened, patient, visit
from ..conftest import ENGINES, make_online

pytestmark = IN_A_BROWSER


def page_of(browser, folder, engines):
    """The report of a run of theirs, which is in `folder`/run."""
    run = make_online(folder / "run", engines=engines, scales=[0.4, 0.8], repeats=1, n=110, faults=False)
    return opened(browser, write_report(load_runs([run]), folder / "page.html").resolve().as_uri())


def test_axes_are_those_of_the_figures(browser, tmp_path):
    """One engine answers in milliseconds, the other in seconds: what is drawn is logarithmic."""
    engines = [replace(ENGINES[0], prefill_s=0.0003), replace(ENGINES[2], prefill_s=3.0)]
    page = page_of(browser, tmp_path, engines)
    page.execute_script("for (const about of document.querySelectorAll('details')) about.open = true")
    every, logarithmic = charts(load_run(tmp_path / "run", trust=True)).every, 0
    for plot in page.execute_script(PLOTS):
        shown = every[plot.get_attribute("data-chart").partition("/")[2]]
        drawn(page, plot)
        for which, axis in (("x", shown.x), ("y", shown.y)):
            low, high = axis_ends(axis, shown.shown, which)
            assert ends(plot, which) == pytest.approx([low, high], rel=1e-4, abs=1e-4), shown.name
            logarithmic += axis.log
    assert logarithmic > 6


def axis_labels(page, plot, align):
    """The names beside an axis of a plot: text, where it is drawn, its width, and its line; in pixels."""
    return page.execute_script(
        "const draw = CanvasRenderingContext2D.prototype.fillText; const [, align] = arguments, found = [];"
        "CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {"
        "  if (text && this.textAlign === align)"
        "    found.push([this.canvas, text, x, this.measureText(text).width, y]);"
        "  draw.call(this, text, x, y) };"
        "const button = arguments[0].closest('article').querySelector('.legend button');"
        "button.click(); found.length = 0; button.click();"
        "CanvasRenderingContext2D.prototype.fillText = draw;"
        "return found.filter(([canvas]) => arguments[0].contains(canvas)).map(([, ...label]) => label)",
        plot, align,
    )  # fmt: skip


def test_no_label_of_an_axis_is_cut(browser, tmp_path):
    slow = [replace(engine, prefill_s=150.0) for engine in ENGINES[::2]]
    page = page_of(browser, tmp_path, slow)
    labels = axis_labels(page, chart(page), "right")
    assert max(len(text) for text, *_ in labels) >= len("100,000"), labels
    assert all(width <= x for _, x, width, _ in labels), labels


def test_no_names_of_a_narrow_axis_touch(browser, window, tmp_path):
    slow = [
        replace(engine, prefill_s=prefill) for engine, prefill in zip(ENGINES[::2], (0.1, 0.8), strict=True)
    ]
    page = page_of(browser, tmp_path, slow)
    window(390, 844)
    seen = set()
    for place in range(4):
        lines = {}
        for text, x, width, y in axis_labels(page, chart(page, place), "center"):
            lines.setdefault(round(y), set()).add((x - width / 2, x + width / 2, text))
        for line in map(sorted, lines.values()):
            assert all(end <= start for (_, end, _), (start, *_) in pairwise(line)), line
            seen |= {text for *_, text in line}
    assert {"1,000", "10,000"} <= seen, seen


def test_a_low_distribution_names_its_end(browser, window, tmp_path):
    """100 % and 90 % both have room in the first screen; in half its height they are too close together."""
    page = page_of(browser, tmp_path, ENGINES[::2])
    window(1024, 768)
    plot = chart(page, 1)
    assert "/ecdf_ttft" in plot.get_attribute("data-chart")
    assert {text for text, *_ in axis_labels(page, plot, "right")} >= {"100 %", "90 %", "75 %", "50 %"}
    page.execute_script("arguments[0].closest('.card').style.setProperty('--plot', '100px')", plot)
    window(1000, 768)  # it is drawn anew in the size that it has then
    laid_out(page)
    labels = {text for text, *_ in axis_labels(page, plot, "right")}
    assert "100 %" in labels and "90 %" not in labels


# --- The index of reports --------------------------------------------------------------------------------

REPORTS = Path(__file__).parents[4] / "reports"


def test_the_index_shows_what_has_all_words_of_the_filter(browser):
    address = (REPORTS / "index.html").resolve().as_uri()

    def rows():
        headings = (
            "return [...document.querySelectorAll('.glance tr.group')].filter(row => row.checkVisibility())"
            ".map(row => row.innerText.trim())"
        )
        shown = browser.find_elements("css selector", ".glance tr[data-filter]:not([hidden])")
        return len(shown), browser.execute_script(headings)

    heads = (
        "return [...document.querySelectorAll('.glance thead th')].filter(head => head.checkVisibility())"
        ".map(head => head.textContent)"
    )
    visit(browser, address)
    everything, headings = rows()
    engines = browser.execute_script(heads)
    field = browser.find_element("css selector", "#filter")
    field.send_keys("H200 qwen-3-8B")
    few, found = rows()
    assert 0 < few < everything and 0 < len(found) < len(headings)
    assert all("qwen3-8b" in heading and "H200" in heading for heading in found)
    assert browser.find_element("css selector", ".filter output").text == f"{few} loads"
    assert set(engines) - set(browser.execute_script(heads)) == {"llama.cpp", "transformers"}
    kept = browser.current_url
    browser.get("about:blank")
    browser.get(kept)
    patient(browser).until(lambda page: rows() == (few, found))
    browser.execute_script("location.hash = '#all'")  # a place in the page
    assert rows() == (few, found)
    field = browser.find_element("css selector", "#filter")
    field.clear()
    field.send_keys("nothing has this")
    assert rows() == (0, []) and "no load" in browser.find_element("css selector", ".filter").text
    field.clear()
    field.send_keys(Keys.SPACE)
    assert rows() == (everything, headings) and browser.execute_script(heads) == engines
    [chip] = [
        each for each in browser.find_elements("css selector", ".filter button") if each.text == "qwen3-8b"
    ]
    chip.click()
    assert 0 < rows()[0] < everything and chip.get_attribute("aria-pressed") == "true"
    chip.click()
    assert rows() == (everything, headings)


def test_the_index_divides_by_an_engine_and_fits_a_phone(browser, window):
    window(390, 900)
    visit(browser, (REPORTS / "index.html").resolve().as_uri())
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    Select(browser.find_element("css selector", "#baseline")).select_by_visible_text("vLLM")
    shown = browser.execute_script(
        "return [...document.querySelectorAll('td[data-head=vLLM] data')].map(number => number.textContent)"
    )
    assert "1.00×" in shown and browser.current_url.endswith("#to=vLLM")
