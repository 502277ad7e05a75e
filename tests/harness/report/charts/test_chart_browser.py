"""The charts of a report in a real browser: what a reader can do with them."""

import csv
import json

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from harness.report.answer import answer
from harness.report.charts.run_charts import charts
from harness.report.render import write_report
from harness.report.text.heading import title
from harness.runs.reader import load_run, load_runs
from harness.schema.load import TraceLoad

from ..browsing import IN_A_BROWSER, IS_READY, KEEP_COPIES, chart, ends, opened, patient, visit
from ..conftest import ENGINES, Engine, make_online

pytestmark = IN_A_BROWSER
SEVEN = [
    Engine("other", f"engine {i} of a long name", 0.01 + 0.004 * i, 0.004, variant=f"v{i}") for i in range(7)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("charts") / "run"
    return make_online(folder, engines=ENGINES[::2], scales=[0.4, 0.8], repeats=1, n=110, faults=False)


@pytest.fixture(scope="module")
def report(folder, tmp_path_factory):
    page = tmp_path_factory.mktemp("charts") / "page.html"
    return write_report(load_runs([folder]), page).resolve().as_uri()


@pytest.fixture
def page(browser, report):
    return opened(browser, report)


def legend(page, label):
    return page.execute_script(
        "const button = [...document.querySelectorAll('.legend button')].find("
        "  b => b.dataset.label === arguments[0] && b.checkVisibility());"
        "button.scrollIntoView({block: 'center'}); return button",
        label,
    )


def tool(page, plot, name):
    """A button above a plot."""
    return page.execute_script(
        "return [...arguments[0].closest('figure').querySelectorAll('.chart-tools button')].find("
        "  b => b.innerText.trim() === arguments[1])",
        plot,
        name,
    )


def test_hiding_an_engine_rescales_every_chart(page):
    plot = chart(page)
    before = ends(plot)[1]
    legend(page, "vLLM").click()
    assert json.loads(plot.get_attribute("data-shown")) == ["roseinfer"]
    assert ends(plot)[1] < before
    empty = page.execute_script(
        "return [...document.querySelectorAll('.card.empty .plot')].map(plot => plot.dataset.chart)"
    )
    assert empty == ["run-1/requests_vLLM_scale_0.4"]  # a chart of this engine alone
    pressed = (
        "return [...document.querySelectorAll('.legend button')].filter(b => b.dataset.label === 'vLLM')"
    )
    assert page.execute_script(f"{pressed}.every(b => b.ariaPressed === 'false')")
    assert page.execute_script("return document.getElementById('status').textContent") == "vLLM hidden."
    legend(page, "vLLM").send_keys(" ")
    assert ends(plot)[1] == before
    assert page.get_log("browser") == []


def test_a_double_click_shows_an_engine_alone_and_so_does_the_keyboard(page):
    plot = chart(page)
    ActionChains(page).double_click(legend(page, "vLLM")).perform()
    assert json.loads(plot.get_attribute("data-shown")) == ["vLLM"]
    ActionChains(page).double_click(legend(page, "vLLM")).perform()
    assert json.loads(plot.get_attribute("data-shown")) == ["vLLM", "roseinfer"]
    legend(page, "roseinfer").send_keys(Keys.SHIFT, Keys.ENTER)
    assert json.loads(plot.get_attribute("data-shown")) == ["roseinfer"]


def test_a_percentile_is_picked_for_all_charts_by_load(page, folder):
    """Their titles name it."""
    caption = "return arguments[0].closest('figure').querySelector('figcaption').innerText.split('\\n')[0]"
    before = page.execute_script(caption, chart(page))
    Select(page.find_element("css selector", "select[data-view]")).select_by_visible_text("p50")
    plots = [chart(page, name) for name in ("ttft", "tpot")]
    assert [plot.get_attribute("data-view") for plot in plots] == ["p50", "p50"]
    assert page.execute_script(caption, plots[0]) != before
    highest = max(summary.ttft_ms.ci["p50"][1] for summary in load_run(folder).pooled)
    assert ends(plots[0])[1] == pytest.approx(1.06 * highest, rel=1e-3)


def test_an_axis_becomes_logarithmic_and_linear_again(page):
    plot = chart(page)
    button = tool(page, plot, "log y")
    assert ends(plot)[0] == 0
    button.click()
    assert ends(plot)[0] > 0 and button.get_attribute("aria-pressed") == "true"
    button.click()
    assert ends(plot)[0] == 0


def test_a_zoom_that_another_axis_ends_has_no_button_to_end_it(page):
    plot = zoomed(page)
    reset, log = tool(page, plot, "Reset zoom"), tool(page, plot, "log x")
    log.click()
    assert not reset.is_displayed()
    log.click()
    zoomed(page)
    reset.send_keys(Keys.ENTER)
    assert not reset.is_displayed() and page.switch_to.active_element == plot


def zoomed(page, width=80):
    """The second plot of the page, when `width` by 40 pixels of it were dragged over."""
    plot = chart(page, 1)
    before = ends(plot, "x")
    over = plot.find_element("css selector", ".u-over")
    ActionChains(page).move_to_element_with_offset(over, -60, -20).click_and_hold().move_by_offset(
        width, 40
    ).release().perform()
    patient(page).until(lambda page: ends(plot, "x") != before)
    return plot


def test_dragging_zooms_and_escape_shows_everything_again(page):
    before = ends(chart(page, 1), "x")
    plot = zoomed(page)
    low, high = ends(plot, "x")
    assert before[0] < low < high < before[1]
    plot.send_keys(Keys.ESCAPE)
    assert ends(plot, "x") == before


def test_a_point_has_its_value_and_interval_by_keyboard_and_by_mouse(page, folder):
    Select(page.find_element("css selector", "select[data-view]")).select_by_visible_text("p50")
    plot = chart(page)
    plot.send_keys(Keys.ARROW_RIGHT)
    tip = page.find_element("id", "tip")
    patient(page).until(lambda page: tip.is_displayed())
    lines = tip.text.splitlines()
    light = TraceLoad(scale=0.8)
    summary = next(s for s in load_run(folder).pooled if s.label == "vLLM" and s.load == light)
    low, high = summary.ttft_ms.ci["p50"]
    assert lines[0] == "vLLM p50" and lines[1].startswith("offered requests/s: ")
    assert float(lines[2].removesuffix(" ms")) == pytest.approx(summary.ttft_ms.p50, rel=1e-3)
    shown = [float(end) for end in lines[3].removeprefix("95 % interval ").split(" to ")]
    assert shown == pytest.approx([low, high], rel=1e-3)
    assert lines[4] == f"n = {summary.ttft_ms.n}" and lines[5:] in ([], ["invalid"])
    spoken = page.execute_script("return document.getElementById('status').textContent")
    assert spoken == ", ".join(lines)
    found = page.execute_script(
        "const [plot, tip] = arguments; const over = plot.querySelector('.u-over');"
        "const box = over.getBoundingClientRect(); const texts = new Set();"
        "for (let x = 0; x < box.width; x += 8) for (let y = 0; y < box.height; y += 8) {"
        "  over.dispatchEvent(new PointerEvent('pointermove', {clientX: box.x + x, clientY: box.y + y}));"
        "  if (!tip.hidden) texts.add(tip.firstChild.textContent) }"
        "return [...texts].sort()", plot, tip,
    )  # fmt: skip
    assert found == ["roseinfer p50", "vLLM p50"]


def test_the_left_arrow_begins_at_the_last_point(page, folder):
    plot = chart(page)
    plot.send_keys(Keys.ARROW_LEFT)
    tip = page.find_element("id", "tip")
    patient(page).until(lambda page: tip.is_displayed())
    assert tip.text.splitlines()[0].startswith("roseinfer p")


@pytest.mark.parametrize("keyboard", [True, False])
def test_the_tip_moves_with_its_point_where_the_keyboard_chose_it(page, keyboard):
    """The focus of a chart scrolls the page, after the key was pressed too."""
    plot = chart(page)
    if keyboard:
        plot.send_keys(Keys.ARROW_RIGHT)
    else:
        page.execute_script(
            "const over = arguments[0].querySelector('.u-over'); const box = over.getBoundingClientRect();"
            "for (let x = 0; x < box.width; x += 8) for (let y = 0; y < box.height; y += 8)"
            "  if (document.getElementById('tip').hidden) over.dispatchEvent("
            "    new PointerEvent('pointermove', {clientX: box.x + x, clientY: box.y + y}))",
            plot,
        )
    tip = page.find_element("id", "tip")
    patient(page).until(lambda page: tip.is_displayed())
    before, [moved, top] = (
        tip.rect["y"],
        page.execute_async_script(
            "const [done] = arguments; const from = scrollY;"
            "addEventListener('scroll', () => done([scrollY - from, document.getElementById('tip')"
            "  .getBoundingClientRect().top + scrollY]), {once: true}); scrollBy(0, 40)"
        ),
    )
    assert moved == 40 and tip.is_displayed() == keyboard
    assert not keyboard or top == pytest.approx(before, abs=1)


def test_arrows_go_to_the_points_in_sight(page):
    plot = zoomed(page, 250)
    low, high = ends(plot, "x")
    for _ in range(5):
        plot.send_keys(Keys.ARROW_RIGHT)
        words = page.execute_script("return document.getElementById('status').textContent").split(", ")
        assert low <= float(words[1].split()[0]) <= high, words


def test_the_address_keeps_what_is_shown(page, report):
    legend(page, "vLLM").click()
    Select(page.find_element("css selector", "select[data-view]")).select_by_visible_text("p90")
    page.execute_script("document.querySelector('details[data-metric=tpot_ms]').open = true")
    patient(page).until(lambda page: "metric=tpot_ms" in page.current_url)
    address = page.current_url
    assert address.removeprefix(report) == "#engine=roseinfer&show=p90&metric=tpot_ms"
    opened(page, address)
    plot = chart(page)
    assert json.loads(plot.get_attribute("data-shown")) == ["roseinfer"]
    assert plot.get_attribute("data-view") == "p90"
    assert page.execute_script("return document.querySelector('details[data-metric=tpot_ms]').open")


@pytest.mark.parametrize(("engines", "shown"), [
    ("engine=vLLM", ["vLLM"]),
    ("engine=vLLM,roseinfer", ["vLLM", "roseinfer"]),
    ("engine=not-here", ["vLLM", "roseinfer"]),
    ("engine=", []),
])  # fmt: skip
def test_an_address_that_somebody_wrote_shows_what_there_is(browser, report, engines, shown):
    """The engines that there are, and the first percentile for one that there is not."""
    page = opened(browser, f"{report}#{engines}&metric=tpot_ms&show=p12")
    assert json.loads(chart(page).get_attribute("data-shown")) == shown
    pick = Select(page.find_element("css selector", "select[data-view]"))
    assert pick.first_selected_option == pick.options[0]


def test_what_is_compared_is_in_the_address_and_everything_follows(page, report):
    select(page, "load", "scale 0.8")
    select(page, "against", "roseinfer")
    select(page, "other", "vLLM")
    assert page.current_url.removeprefix(report) == "#compare=vLLM&with=roseinfer&load=scale+0.8"
    opened(page, page.current_url)
    shown = page.execute_script(
        "return [...document.querySelectorAll('.answer figure, .verdict')]"
        ".filter(part => part.checkVisibility())"
        ".map(part => part.dataset.title ?? part.querySelector('.plot')?.dataset.chart ?? part.dataset.pair)"
    )
    assert shown[0] == "0-1" and "scale 0.8" in shown[1] and "against roseinfer" in shown[1]
    assert shown[2:] == ["run-1/frontier", "run-1/ecdf_ttft_scale_0.8"]
    rows = page.find_elements("css selector", ".answer tbody tr")
    assert [row.text.split()[1] for row in rows if row.is_displayed()] == ["roseinfer", "vLLM"]
    assert page.get_log("browser") == []


def select(page, name, text):
    Select(page.find_element("css selector", f"select[data-choose={name}]")).select_by_visible_text(text)


def test_a_click_on_an_outlier_says_which_request_it_was(page):
    page.execute_script("for (const about of document.querySelectorAll('details')) about.open = true")
    plot = chart(page, "timeline_scale_0.4")
    plot.send_keys(Keys.ARROW_RIGHT, Keys.ENTER)
    words = page.execute_script("return document.querySelector('.kept-point').textContent")
    assert {"request", "tokens in", "tokens out"} <= {part.partition(":")[0] for part in words.split(" · ")}


def test_a_price_that_is_typed_gives_what_tokens_cost(page, folder):
    page.find_element("css selector", ".price input").send_keys("3.6")
    cells = page.execute_script(
        "return [...document.querySelectorAll('figure[data-name=frontier] tbody tr')]"
        ".map(row => [row.cells[2].dataset.value, row.querySelector('.cost').textContent].map(Number))"
    )
    assert len(cells) == 4
    assert all(cost == pytest.approx(1000 / rate, rel=0.01) for rate, cost in cells)


def test_paper_has_the_answer_alone_until_everything_is_asked_for(page, report):
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    height = "return document.documentElement.scrollHeight"
    answer = page.execute_script(height)
    visit(page, f"{report}?print=all")
    assert page.execute_script(height) > 3 * answer
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_the_data_of_every_chart_is_that_of_its_file(browser, folder, offline_run, tmp_path):
    for of in (folder, offline_run):
        page = opened(browser, write_report(load_runs([of]), tmp_path / f"{of.name}.html").resolve().as_uri())
        page.execute_script("for (const about of document.querySelectorAll('details')) about.open = true")
        found = dict(patient(page).until(lambda page: page.execute_script(
            "const cards = [...document.querySelectorAll('figure.card')];"
            "const part = (card, name) => card.querySelector(name);"
            "const text = cards.map(c => [part(c, '.plot').dataset.chart, part(c, 'pre').textContent]);"
            "return text.every(([, data]) => data) && text"
        )))  # fmt: skip
        every = charts(load_run(of)).every
        assert {name.partition("/")[2] for name in found} == set(every)
        for name, text in found.items():
            assert plain_rows(text) == plain_rows(every[name.partition("/")[2]].csv()), name


def plain_rows(text):
    """Rows of a chart's data: Python and JavaScript write numbers and truth in their own ways."""

    def plain(cell):
        try:
            return f"{float(cell):g}"
        except ValueError:
            return cell.lower()

    return [[plain(cell) for cell in row] for row in csv.reader(text.splitlines())]


def test_the_data_of_a_chart_is_copied_and_the_chart_saved(page, folder):
    page.execute_script(KEEP_COPIES)
    card = page.execute_script("return arguments[0].closest('figure')", chart(page))
    card.find_element("css selector", "[data-copy=data]").click()
    rows = list(csv.DictReader(page.execute_script("return window.copied").splitlines()))
    known = {row["TTFT, ms"] for row in rows if row["part"] == "p90"}
    assert known == {f"{float(f'{s.ttft_ms.p90:.6g}'):g}" for s in load_run(folder).pooled}
    card.find_element("css selector", "[data-save]").click()
    patient(page).until(lambda page: page.execute_script("return window.saved.length") == 1)
    [[name, png]] = page.execute_script("return window.saved")
    assert name == "ttft.png" and png.startswith("data:image/png;base64,iVBOR")
    assert page.get_log("browser") == []


def test_release_notes_have_the_verdict_the_table_and_the_chart(page, folder):
    page.execute_script(KEEP_COPIES)
    page.find_element("css selector", "[data-copy=notes]").click()
    parts = page.execute_script("return window.copied").replace("\u00a0", " ").split("\n\n")
    run = load_run(folder)
    assert parts[0] == f"### {title(run)}"
    assert all(str(sentence) in parts for sentence in answer(run))
    [table] = [part for part in parts if part.startswith("| engine | TTFT, ms p50")]
    assert table.count("\n") >= 3
    assert parts[-1].endswith("](frontier.png)")
    [[name, picture]] = page.execute_script("return window.saved")
    assert name == "frontier.png" and picture.startswith("data:image/png;base64,iVBOR")


def test_seven_engines_have_a_panel_each(browser, tmp_path):
    run = make_online(tmp_path / "run", engines=SEVEN, scales=[0.5, 1.0], repeats=1, n=40, faults=False)
    page = opened(browser, write_report(load_runs([run]), tmp_path / "page.html").resolve().as_uri())
    plot = chart(page)
    names = [name.text for name in plot.find_elements("css selector", "p")]
    assert names == sorted(engine.label for engine in SEVEN)
    title = page.find_element("css selector", "h1").text
    assert " ".join(title.split()).endswith(f"· {SEVEN[0].label} / 6 others")
    sizes = [canvas.size["width"] for canvas in plot.find_elements("css selector", "canvas")]
    assert len(sizes) == 7 and min(sizes) >= 160
    for engine in SEVEN[6:]:
        legend(page, engine.label).click()
    assert len(plot.find_elements("css selector", "canvas")) == 1  # six fit one panel
    assert page.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    assert page.get_log("browser") == []


def test_paper_has_every_chart_in_light_colours_and_fitted_to_it(page):
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    shown = chart(page).size["width"]
    page.execute_script("document.documentElement.classList.add('everything')")
    page.execute_script("dispatchEvent(new Event('beforeprint'))")
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", **dark})
    drawn = page.execute_script(
        "return [...document.querySelectorAll('.plot')].filter(plot => plot.clientWidth).map(plot => {"
        " const canvas = plot.querySelector('canvas'); if (!canvas) return null;"
        " const dots = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;"
        " const numbers = {light: 0, dark: 0};"
        " for (let i = 0; i < dots.length; i += 4)"
        "   numbers[{'91 97 104': 'light', '162 169 177': 'dark'}[dots.slice(i, i + 3).join(' ')]] += 1;"
        " return [canvas.getBoundingClientRect().width <= plot.clientWidth + 1, numbers.light > 20,"
        "   numbers.dark === 0]})"
    )
    assert len(drawn) > 4 and all(made == [True, True, True] for made in drawn), drawn
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    page.execute_script("dispatchEvent(new Event('afterprint'))")
    assert chart(page).size["width"] == shown
    assert page.get_log("browser") == []


def test_without_javascript_the_page_says_where_the_charts_are(page):
    address = page.current_url
    for _ in range(5):  # the process of a page may begin before the command reaches it
        page.get("about:blank")  # so that no script of the page before is still to run
        page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
        visit(page, address)
        page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
        if not page.execute_script(IS_READY):
            break
    assert not page.find_element("css selector", ".card").is_displayed()
    assert "JavaScript" in page.find_element("css selector", "main .note").text
