"""The report in a real browser, opened from disk."""

import csv
import json
import re
import shutil
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import get_args
from urllib.parse import urlparse
from urllib.request import url2pathname

import numpy as np
import pytest
from PIL import Image
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from harness.files import write_json
from harness.report.live_page import live_page
from harness.report.render import write_report, write_without_figures
from harness.runs.folder import FIGURES, JOURNAL, MANIFEST
from harness.runs.journal import JournalEntry
from harness.runs.reader import load_run, load_runs
from harness.schema.load import TraceLoad
from harness.schema.profile import (
    Artifact,
    Category,
    KernelFigures,
    Level,
    ProfileFigures,
    ProfileManifest,
    ProfileRun,
    Profiles,
    StepFigures,
)

from .browsing import IN_A_BROWSER, KEEP_COPIES, laid_out, patient, visit
from .conftest import ENGINES, make_online

pytestmark = IN_A_BROWSER
REPORTS = Path(__file__).parents[3] / "reports"
#: Published reports of online runs, those that today's code draws from raw times.
CURRENT = sorted(REPORTS / f"{raw.parent.name}.html" for raw in REPORTS.glob("*/requests.parquet"))
#: A published page with each kind of section: a trace with invalid cells, closed loops, prefix hits, search,
#: batch, index.
OF_EACH_KIND = (
    *("h100-gpt2", "h200-x2-qwen3-32b", "h200-qwen3-8b-shared-prefixes", "cpu-amx-smollm2-135m-search"),
    *("cpu-smollm2-135m", "index"),
)
#: Rules of axe that look at colours.
OF_COLOURS = ["color-contrast", "link-in-text-block"]
SCHEMES = ("light", "dark")
#: Widths and heights of windows, the last that of a phone.
SIZES = [(1440, 900), (1024, 768), (390, 844)]
HOSTILE = "</script><script>window.hit = 1</script><img src=x onerror='window.hit = 2'>\"{{7*7}}"


def address_of(folder):
    """Of a run's report, which has no part of the figures beside it."""
    return write_without_figures(load_run(folder, trust=True)).resolve().as_uri()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_online(tmp_path_factory.mktemp("browser") / "run", engines=ENGINES[::2], repeats=1, n=110)


@pytest.fixture(scope="module")
def report(folder):
    return address_of(folder)


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """The report of a run with a profile, whose files have long names."""
    folder = make_online(tmp_path_factory.mktemp("profiled") / "run", engines=ENGINES[::2], repeats=1, n=110)
    path = "profiles/nsys/roseinfer/nsys_cuda_gpu_mem_time_sum_of_all_ranges.csv"
    capture = ProfileRun(
        tool="nsys", engine="roseinfer", label="roseinfer", cmd=[], load=TraceLoad(scale=0.4),
        n=9, steps=8, wall_s=1,
        level=Level(in_flight=2, running=2), output_dir="profiles/nsys/roseinfer", log_path="log",
        artifacts=[Artifact(path=path, kind="nsys stats", bytes=9, sha256="0" * 64)],
    )  # fmt: skip
    time = dict.fromkeys(get_args(Category), 0.1)
    step = StepFigures(
        n=8, period_ms=1, period_p50_ms=1, busy_ms=0.7, gap_ms=0.1, kernels=9, kernel_us=80,
        categories_ms=time,
    )  # fmt: skip
    figures = ProfileFigures(
        tool="nsys", label="roseinfer", device="cuda", steps_by="NVTX ranges", steps={"decode": step},
        capture_ms=9, busy_share=0.7, components={},
        kernels=[KernelFigures(name="a_kernel<of_long_name>" * 9, category="matmul", n=8, total_ms=1)],
    )  # fmt: skip
    write_json(folder / MANIFEST, ProfileManifest(meta=load_run(folder).meta, runs=[capture]))
    write_json(folder / FIGURES, Profiles(figures=[figures]))
    return address_of(folder)


@pytest.fixture
def page(browser, report):
    browser.get_log("browser"), browser.get_log("performance")
    visit(browser, report)
    return browser


def column(page, table, index):
    rows = page.execute_script(
        "return [...document.querySelectorAll('figure.table table')[arguments[0]].tBodies[0].rows]"
        ".map(row => row.cells[arguments[1]].querySelector('.v').textContent)", table, index,
    )  # fmt: skip
    return [str(text) for text in rows]


def values(page, table, index):
    """Numbers by which a column of a table is sorted, from the first row on."""
    texts = page.execute_script(
        "return [...document.querySelectorAll('figure.table table')[arguments[0]].tBodies[0].rows]"
        ".map(row => row.cells[arguments[1]].dataset.value)", table, index,
    )  # fmt: skip
    return [float(text) for text in texts]


def shown(page, selector):
    """The first element of a selector, once it is displayed: a section that was opened is laid out later."""
    element = page.find_element("css selector", selector)
    patient(page).until(lambda page: element.is_displayed())
    return element


def test_nothing_is_fetched_and_nothing_is_complained_about(page, report):
    events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    sent = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
    # Chromium's first tab fetches too, for itself
    urls = {each["request"]["url"] for each in sent if not each["documentURL"].startswith("chrome")}
    assert {url for url in urls if not url.startswith("data:")} == {report}
    assert page.get_log("browser") == []


def test_sorting_by_a_number_and_by_a_name(page):
    before = values(page, 0, 1)
    head = page.execute_script("return document.querySelectorAll('figure.table th[data-head]')[1]")
    button = head.find_element("css selector", "button")
    button.click()
    up = values(page, 0, 1)
    assert up == sorted(before)
    assert head.get_attribute("aria-sort") == "ascending"
    button.click()
    down = values(page, 0, 1)
    assert down == up[::-1] != up
    name = page.execute_script("return document.querySelector('figure.table th[data-head] button')")
    name.click()
    assert column(page, 0, 0) == ["roseinfer", "vLLM"]
    assert head.get_attribute("aria-sort") is None

    # Numbers within texts are sorted as numbers.
    texts = page.execute_script(
        "const figure = document.querySelector('figure.table');"
        "const cells = [...figure.querySelectorAll('tbody tr')].map(row => row.cells[1]);"
        "const texts = ['16 / 3', '2 / 1'];"
        "cells.forEach((cell, i) => { delete cell.dataset.value;"
        " cell.replaceChildren(cell.querySelector('.v')); cell.firstChild.textContent = texts[i] });"
        "figure.querySelectorAll('th[data-head] button')[1].click();"
        "return [...figure.querySelectorAll('tbody tr')].map(row => row.cells[1].textContent)"
    )
    assert texts == ["2 / 1", "16 / 3"]


def test_copying_a_table(page):
    page.execute_script(KEEP_COPIES)
    shown(page, "[data-copy=markdown]").click()
    lines = page.execute_script("return window.copied").splitlines()
    assert lines[0].endswith("(scale 0.8), against vLLM**") and lines[1] == ""
    assert lines[2].startswith("| engine | TTFT, ms p50 | TTFT, ms p90 | TTFT, ms p99 | TPOT, ms p50 |")
    assert re.match(r"\| vLLM \(.+\) \| [\d.,]+ \([\d.]+–[\d.]+\)", lines[4])
    of_roseinfer = r"\| roseinfer \(0\.1\.0\) \| [\d.,]+ \([\d.]+×( better|), .+\)"
    assert re.match(of_roseinfer, lines[5])
    assert any("95 % interval" in line for line in lines[6:])

    page.execute_script("for (const d of document.querySelectorAll('details')) d.open = true")
    ttft = page.find_element("css selector", "figure[data-title='TTFT (ms)']")
    ttft.find_element("css selector", "[data-copy=markdown]").click()
    copied = page.execute_script("return window.copied")
    assert "| TTFT, ms scale 0.4 p50 |" in copied
    assert "In brackets: 95 % intervals within the one repeat." in copied
    assert re.search(r"\| vLLM \| [\d.,]+ \([\d.,]+–[\d.,]+\) † \|", copied)
    assert "† Invalid: shown, and not compared." in copied
    ttft.find_element("css selector", "[data-copy=csv]").click()
    rows = list(csv.DictReader(page.execute_script("return window.copied").splitlines()))
    first, vllm = (next(row for row in rows if row["engine"] == name) for name in ("roseinfer", "vLLM"))
    assert first["metric"] == vllm["metric"] == "TTFT, ms scale 0.4 p50"
    assert float(first["lo"]) < float(first["value"]) < float(first["hi"])
    assert (first["valid"], vllm["valid"]) == ("true", "false") and "requests failed" in vllm["notices"]


def check_first_screen(page, address, width, height):
    """Badges, answer and table are above the fold, and charts begin there, on a phone on the first two
    screens; no words lie over others; and all of the page is ten screens at most."""
    assert page.execute_script("return innerWidth") == width
    ends = page.execute_script(
        "const box = name => document.querySelector(name).getBoundingClientRect();"
        "const ends = ['.badges', '.verdict', 'figure.table'].map(name => box(name).bottom);"
        "return [...ends, box('.first .plot').top]"
        ".map(place => place + scrollY)"
    )
    assert ends == sorted(ends) and ends[-1] <= height * (2 if width < 500 else 1), (address, ends)
    covered = page.execute_script(
        "const box = (card, name) => card.querySelector(name).getBoundingClientRect();"
        "return [...document.querySelectorAll('.card')].filter(card =>"
        " box(card, '.how').height && box(card, '.how').bottom > box(card, '.tools').top + 1).length"
    )
    assert covered == 0, address
    assert page.execute_script("return document.documentElement.scrollHeight") <= 10 * height, address


@pytest.mark.published
def test_a_badge_about_other_engines_is_hidden_where_two_are_compared(browser):
    """`changed meanwhile` and `repeats disagree` are about roseinfer; `interrupted` is about the run."""
    badges = (
        "return [...document.querySelectorAll('.badge')].filter(badge => badge.checkVisibility())"
        ".map(badge => (badge.querySelector('summary') ?? badge).textContent.slice(2))"
    )
    address = f"{(REPORTS / 'h200-qwen3-8b.html').as_uri()}"
    visit(browser, address, ready=True)
    every = set(browser.execute_script(badges))
    visit(browser, "about:blank")
    browser.get(f"{address}#compare=vLLM&with=SGLang")
    patient(browser).until(lambda page: page.execute_script(badges))
    of_two = set(browser.execute_script(badges))
    assert every - of_two == {"changed meanwhile", "repeats disagree", "opening burst"}
    assert "interrupted" in of_two < every


@pytest.mark.published
def test_the_first_screen_of_what_is_published_answers(browser, window):
    """In a window whose size changes."""
    for address in (page.as_uri() for page in CURRENT):
        visit(browser, address, ready=True)
        for width, height in SIZES:
            window(width, height)
            laid_out(browser)
            check_first_screen(browser, address, width, height)


def bottoms(page, height):
    """Where the parts of the first two screens end."""
    return page.execute_script(
        "return [...document.querySelectorAll('.verdict, .scroll, .card, .how, details.about')]"
        ".map(element => Math.round(element.getBoundingClientRect().bottom + scrollY))"
        ".filter(bottom => bottom > 0 && bottom < 2 * arguments[0])", height,
    )  # fmt: skip


def test_the_first_screen_answers_and_nothing_moves_when_the_script_runs(browser, window, report, tmp_path):
    """What the script shows has its place before."""
    code, before = re.compile("<script>.*?</script>", re.S), tmp_path / "before.html"
    published = [(REPORTS / f"{name}.html").as_uri() for name in ("h100-gpt2", "h200-llama-3.1-8b")]
    for address in (report, *published):
        before.write_text(code.sub("", Path(url2pathname(urlparse(address).path)).read_text()))
        visit(browser, before.as_uri())
        places = {}
        for width, height in SIZES:
            window(width, height)
            places[width] = bottoms(browser, height)
        for width, height in SIZES:
            window(width, height)
            visit(browser, address, ready=True)
            assert places[width] == bottoms(browser, height) and len(places[width]) > 3, address
            if address == report:
                check_first_screen(browser, address, width, height)


def test_the_rate_of_a_closed_loop_is_in_view_on_a_phone(browser, window, tmp_path):
    """Beside TTFT, and however the ranking is scrolled."""
    run = make_online(tmp_path / "run", engines=ENGINES[::2], closed=[8], repeats=2, n=110, faults=False)
    window(390, 844)
    visit(browser, write_report(load_runs([run]), tmp_path / "page.html").resolve().as_uri())
    ends = (
        "const box = document.querySelector('figure.table .scroll');"
        "box.scrollLeft = arguments[0]; const at = name => box.querySelector(name).getBoundingClientRect();"
        "const [first, kept] = [at('tbody td'), at('tbody td.kept')];"
        "return [first.right - kept.left, kept.right - innerWidth]"
    )
    overlap, beyond = browser.execute_script(ends, 0)
    assert overlap <= 0 and beyond <= 0 and browser.execute_script(ends, 60)[1] <= 0
    browser.execute_script("document.querySelector('figure.table .scroll').scrollLeft = 0")
    text, end, kept = browser.execute_script(
        "const head = document.querySelectorAll('figure.table th[data-head]')[1];"
        "const words = document.createRange(); words.selectNodeContents(head);"
        "const left = document.querySelector('figure.table .kept').getBoundingClientRect().left;"
        "return [head.textContent, words.getBoundingClientRect().right, left]"
    )
    assert text == "p50" and end <= kept


def test_nothing_moves_when_a_chart_is_drawn(page, window):
    window(390, 844)
    page.refresh()
    height = "return document.documentElement.scrollHeight"
    before = page.execute_script(height)
    drawn = (
        "return [...document.querySelectorAll('.plot')].every(p => !p.checkVisibility() || p.dataset.rangeY)"
    )
    for plot in page.find_elements("css selector", ".plot"):
        page.execute_script("arguments[0].scrollIntoView()", plot)
        page.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0]))")
    patient(page).until(lambda page: page.execute_script(drawn))
    assert page.execute_script(height) == before


def test_a_copy_that_the_browser_refuses_is_not_called_one(page):
    page.execute_script(
        "Object.defineProperty(navigator, 'clipboard', {value: undefined});document.execCommand = () => false"
    )
    button = shown(page, "[data-copy=markdown]")
    button.send_keys(Keys.ENTER)
    patient(page).until(lambda page: button.text == "Not copied")
    assert page.execute_script("return document.getElementById('status').textContent") == "Not copied"
    assert page.switch_to.active_element == button


def test_a_badge_opens_on_its_notices(page):
    bad = page.find_element("css selector", "details.badge.bad")
    text = bad.find_element("css selector", ".notices")
    assert not text.is_displayed()
    bad.find_element("css selector", "summary").click()
    text = shown(page, "details.badge.bad .notices").text
    assert "vLLM" in text and "not compared" in text


def test_no_width_scrolls_the_page_sideways(browser, window, profiled):
    visit(browser, profiled, ready=True)
    browser.execute_script("for (const d of document.querySelectorAll('details')) d.open = true")
    for width in (360, 390, 1024, 1440):
        window(width, 900)
        laid_out(browser)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_a_shadow_says_that_a_table_goes_on(page, window):
    """At its right edge, until the table is scrolled to its end."""
    window(390, 844)
    wide = "return [...document.querySelectorAll('.scroll')].find(e => e.scrollWidth > e.clientWidth + 40)"
    table = page.execute_script(wide)
    edges = []
    for place in (0, 9999):
        page.execute_script("arguments[0].scrollLeft = arguments[1]", table, place)
        pixels = np.asarray(Image.open(BytesIO(table.screenshot_as_png)).convert("L"))
        edges.append(int(np.median(pixels[:, -3])))
    assert edges[0] < edges[1] - 20


def test_dark_mode_changes_paper_and_figures(page):
    seen = {}
    for scheme in SCHEMES:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        seen[scheme] = page.execute_script(
            "return [getComputedStyle(document.body).backgroundColor,"
            " getComputedStyle(document.querySelector('.card')).backgroundColor]"
        )
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert seen["light"][0] == "rgb(255, 255, 255)"
    assert all(light != dark for light, dark in zip(*seen.values(), strict=True))


def test_the_keyboard_reaches_sorting_folds_and_where_links_lead(page):
    reachable = page.execute_script(
        "return [...document.querySelectorAll('th[data-head] button, summary, .scroll, .tools button')]"
        ".every(element => element.tabIndex === 0)"
    )
    assert reachable
    prevented = page.execute_script(
        "const event = new MouseEvent('click', {ctrlKey: true, bubbles: true, cancelable: true});"
        "addEventListener('click', event => { window.prevented = event.defaultPrevented;"
        " event.preventDefault() }, {once: true});"
        "document.querySelector('nav.contents a').dispatchEvent(event); return window.prevented"
    )
    assert prevented is False, "a link opens in a tab of its own"
    # It goes on where a link of the contents leads.
    link = page.find_element("css selector", "nav.contents a[href$='-throughput']")
    link.send_keys(Keys.ENTER)
    page.switch_to.active_element.send_keys(Keys.TAB)
    assert page.execute_script(
        "return document.activeElement.closest('section').contains("
        "document.querySelector(arguments[0].hash))", link,
    )  # fmt: skip


def test_ratios_follow_the_engine_that_others_are_compared_with(page):
    titles = "return [...document.querySelectorAll('section div[data-against]')].filter(d => !d.hidden)" + (
        ".map(d => d.querySelector('figcaption span').textContent)"
    )
    assert "TTFT, ratio to vLLM" in page.execute_script(titles)
    Select(shown(page, "select[data-choose=against]")).select_by_visible_text("roseinfer")
    assert page.execute_script(titles) == [f"{m}, ratio to roseinfer" for m in ("TTFT", "TPOT", "ITL", "E2E")]


#: Takes out parts in which each element has been seen with its attributes, those above it within such a part
#: too; returns all that has been seen by then.
WITHOUT_SEEN = """
  const seen = new Set(arguments[0]);
  const parts = "figure, tbody tr, .card, .tools, .chart-tools, .legend, dl, p, li";
  const tag = element => element.cloneNode(false).outerHTML
    .replace(/(title|aria-[a-z]+|data-[a-z-]+|href|id)="[^"]*"/g, "$1")
    .replace(/[0-9.]+/g, "");
  for (const part of document.querySelectorAll(parts)) {
    if (!part.isConnected) continue;
    const forms = new Map([[part, tag(part)]]);
    for (const element of part.querySelectorAll("*"))
      forms.set(element, forms.get(element.parentElement) + tag(element));
    if ([...forms.values()].every(form => seen.has(form))) part.remove();
    else for (const form of forms.values()) seen.add(form);
  }
  return [...seen];
"""


def violations(page, scheme):
    """What axe finds with all sections open. Another scheme has other colours alone."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    page.execute_script("for (const d of document.querySelectorAll('details')) d.open = true")
    if not page.execute_script("return Boolean(window.axe)"):
        page.execute_script(files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    page.set_script_timeout(120)
    options = {"resultTypes": ["violations"]} | ({"runOnly": OF_COLOURS} if scheme == "dark" else {})
    found = page.execute_async_script("axe.run(document, arguments[0]).then(arguments[1])", options)
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert "color-contrast" in {rule["id"] for rule in found["passes"]}
    assert len(found["passes"]) > (0 if scheme == "dark" else 10)
    return [
        (fault["id"], [node["html"][:160] for node in fault["nodes"][:4]]) for fault in found["violations"]
    ]


def check_with_axe(browser, addresses):
    """Of rows, cards and tools that are alike but for their words and numbers, on one page or on several, one
    is checked."""
    seen = []
    for address in addresses:
        visit(browser, address)
        seen = browser.execute_script(WITHOUT_SEEN, seen)
        found = {scheme: violations(browser, scheme) for scheme in SCHEMES}
        assert found == {"light": [], "dark": []}, address


@pytest.mark.published
def test_axe_finds_no_violation_on_published_pages(browser):
    check_with_axe(browser, ((REPORTS / f"{name}.html").resolve().as_uri() for name in OF_EACH_KIND))


def test_axe_finds_no_violation(browser, report, folder, tmp_path):
    short = make_online(tmp_path / "short", engines=ENGINES[::2], scales=[0.4], repeats=1, n=110)
    several = write_report(load_runs([short, short]), tmp_path / "several.html")
    run = shutil.copytree(folder, tmp_path / "run")
    entry = JournalEntry(
        cell=0, engine="vllm", label="vLLM", load=TraceLoad(scale=0.4), repeat=0,
        finished="2025-03-01T12:00:00Z", requests=110,
    )  # fmt: skip
    (run / JOURNAL).write_text(f"{entry.model_dump_json()}\n", encoding="utf-8")
    live = tmp_path / "live.html"
    live.write_text(live_page(run), encoding="utf-8")
    check_with_axe(browser, [report, several.resolve().as_uri(), live.as_uri()])
    browser.get("about:blank")  # the live page asks its server until then


def test_a_hostile_run_executes_nothing(browser, tmp_path):
    engine = type(ENGINES[0])("roseinfer", HOSTILE, 0.01, 0.004)
    folder = make_online(tmp_path / "run", engines=[engine, ENGINES[2]], scales=[1.0], repeats=1, n=40)
    browser.get_log("browser")
    visit(browser, address_of(folder))
    for button in browser.find_elements("css selector", ".legend button"):
        if button.is_displayed():
            button.click()
    assert browser.execute_script("return window.hit") is None
    assert browser.execute_script("return document.querySelectorAll('img, iframe, object').length") == 0
    assert browser.get_log("browser") == []
