"""The report in a real browser, opened from disk."""

import json
import shutil

import pytest

from harness.reporting.report import write_run_outputs

from .conftest import ENGINES, make_online

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver on PATH"),
]
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser") / "run"
    return write_run_outputs(make_online(folder, engines=ENGINES[::2], repeats=1, n=110)).resolve().as_uri()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def page(browser, report):
    browser.get_log("browser"), browser.get_log("performance")
    browser.get(report)
    return browser


def column(page, table, index):
    rows = page.execute_script(
        "return [...document.querySelectorAll('figure.table table')[arguments[0]].tBodies[0].rows]"
        ".map(row => row.cells[arguments[1]].querySelector('.v').textContent)", table, index,
    )  # fmt: skip
    return [str(text) for text in rows]


def test_nothing_is_fetched_and_nothing_is_complained_about(page, report):
    events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    urls = {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}
    assert {url for url in urls if not url.startswith("data:")} == {report}
    assert page.get_log("browser") == []


def test_sorting_by_a_number_and_by_a_name(page):
    before = column(page, 0, 1)
    head = page.execute_script("return document.querySelectorAll('figure.table th[data-head]')[1]")
    button = head.find_element("css selector", "button")
    button.click()
    up = [float(text.replace(",", "")) for text in column(page, 0, 1)]
    assert up == sorted(float(text.replace(",", "")) for text in before)
    assert head.get_attribute("aria-sort") == "ascending"
    button.click()
    down = [float(text.replace(",", "")) for text in column(page, 0, 1)]
    assert down == up[::-1] != up
    name = page.execute_script("return document.querySelector('figure.table th[data-head] button')")
    name.click()
    assert column(page, 0, 0) == ["roseinfer", "vLLM"]
    assert head.get_attribute("aria-sort") is None


def test_copying_a_table(page):
    page.execute_script(
        "Object.defineProperty(navigator, 'clipboard',"
        " {value: {writeText: async text => { window.copied = text }}})"
    )
    page.find_element("css selector", "[data-copy=markdown]").click()
    lines = page.execute_script("return window.copied").splitlines()
    assert lines[0].startswith("| engine | TTFT p99, ms scale 0.4 |")
    assert lines[1].startswith("| --- | ---: |")
    assert len(lines) == 4 and lines[2].startswith("| roseinfer | ")
    page.find_element("css selector", "[data-copy=csv]").click()
    rows = page.execute_script("return window.copied").splitlines()
    assert rows[0].startswith('engine,"TTFT p99, ms scale 0.4"') and rows[1].startswith("roseinfer,")


@pytest.mark.parametrize("width", [390, 1024, 1440])
def test_no_width_scrolls_the_page_sideways(page, width):
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    page.execute_script("for (const d of document.querySelectorAll('details')) d.open = true")
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_dark_mode_changes_paper_and_figures(page):
    seen = {}
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        seen[scheme] = page.execute_script(
            "return [getComputedStyle(document.body).backgroundColor,"
            " getComputedStyle(document.querySelector('.card svg text')).fill]"
        )
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert seen["light"][0] == "rgb(255, 255, 255)"
    assert all(light != dark for light, dark in zip(*seen.values(), strict=True))


def test_the_keyboard_reaches_sorting_and_folds(page):
    reachable = page.execute_script(
        "return [...document.querySelectorAll('th[data-head] button, summary, .scroll, .tools button')]"
        ".every(element => element.tabIndex === 0)"
    )
    assert reachable
