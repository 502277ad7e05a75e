"""The index of reports in a real browser, opened from disk."""

from pathlib import Path

from selenium.webdriver.common.keys import Keys

from .browsing import IN_A_BROWSER, patient, visit

pytestmark = IN_A_BROWSER
REPORTS = Path(__file__).parents[3] / "reports"


def test_the_index_shows_what_has_all_words_of_the_filter(browser):
    address = (REPORTS / "index.html").resolve().as_uri()

    def rows():
        shown = browser.find_elements("css selector", ".glance tr[data-filter]:not([hidden])")
        headings = browser.find_elements("css selector", ".glance tr.group")
        return len(shown), [heading.text for heading in headings if heading.is_displayed()]

    visit(browser, address)
    everything, headings = rows()
    field = browser.find_element("css selector", "#filter")
    field.send_keys("H200 qwen-3-8B")
    few, found = rows()
    assert 0 < few < everything and 0 < len(found) < len(headings)
    assert all("qwen3-8b" in heading and "H200" in heading for heading in found)
    assert browser.find_element("css selector", ".filter output").text == f"{few} loads"
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
    assert rows() == (everything, headings)
