"""Opening a report in a browser and finding its charts."""

import json

import pytest
from selenium.webdriver.support.ui import WebDriverWait

from .conftest import CHROMIUM, DRIVER

#: Marks of tests in a browser.
IN_A_BROWSER = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver on PATH"),
]
#: The page's script has run to its end: it shows what needs it.
IS_READY = "return document.querySelector('.tools:not([hidden])') !== null"
#: Keeps what the page copies in `copied`, and the names and addresses of what it saves in `saved`.
KEEP_COPIES = """
Object.defineProperty(navigator, "clipboard", {value: {writeText: async text => { window.copied = text }}});
window.saved = [];
HTMLAnchorElement.prototype.click = function () { window.saved.push([this.download, this.href]) };
"""
#: The plots that are visible, asked of the page at once: Selenium asks for each element.
PLOTS = "return [...document.querySelectorAll('.plot')].filter(plot => plot.checkVisibility())"
IS_LOADED = "return location.href.split('#')[0] === arguments[0] && document.readyState === 'complete'"


def patient(browser):
    """Waits a minute at most. Most of what is waited for comes within a few frames, not in the half second
    after which it would be looked for again."""
    return WebDriverWait(browser, 60, poll_frequency=0.05)


def visit(browser, address, ready=False):
    """Opens a page and waits until the whole of it is there; if ready, until its script has run too.

    On a busy machine the driver's own call may return while the page is still being read.
    """
    browser.get(address)
    wait = patient(browser)
    wait.until(lambda page: page.execute_script(IS_LOADED, address))
    if ready:
        wait.until(lambda page: page.execute_script(IS_READY))


def opened(browser, address):
    browser.get("about:blank")  # an address that differs in its fragment alone would not be loaded again
    browser.get_log("browser")
    browser.get(address)
    chart(browser)
    return browser


def chart(page, name="ttft"):
    """A plot, once it is drawn and the page has scrolled there: by name, or by place among the visible."""
    if isinstance(name, int):
        plot = page.execute_script(PLOTS)[name]
    else:
        named = page.find_elements("css selector", f".plot[data-chart$='/{name}']")
        plot = named[0] if named else page.find_element("css selector", ".plot")
    drawn(page, plot)
    laid_out(page)
    return plot


def drawn(page, plot):
    """Scroll to a plot and wait until it is drawn."""
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
    patient(page).until(lambda page: plot.get_attribute("data-range-y"))


def laid_out(page):
    """Wait until charts have the size of a window that was changed."""
    page.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")


def ends(plot, axis="y"):
    return json.loads(plot.get_attribute(f"data-range-{axis}"))
