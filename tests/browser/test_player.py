"""A failure is walked through by keys alone, and the address names the event."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.support.wait import WebDriverWait
from sideways import DESKTOP, PHONE, scrolled_sideways, window

LINES_OF_TITLES = """
    const lines = (cell) => {
      const text = document.createRange();
      text.selectNodeContents(cell);
      return text.getClientRects().length;
    };
    const titles = [...document.querySelectorAll(".levels td:first-child")];
    return titles.map((cell) => [cell.textContent, lines(cell)]);
"""
NARROW = """
    const texts = [...document.querySelectorAll("td, dd, pre, p, li")];
    const long = texts.filter((one) => one.textContent.trim().length > 40);
    const shown = long.filter((one) => one.getBoundingClientRect().width > 0);
    const narrow = shown.filter((one) => one.getBoundingClientRect().width < arguments[0]);
    return [shown.length, narrow.map((one) => one.textContent.trim().slice(0, 80))];
"""
"""The number of long texts that are shown, and those that are narrower than a number of pixels."""
LINK = "cumulative-ids-extend/by-hand"


@pytest.fixture
def page(browser: WebDriver, address: str) -> Iterator[WebDriver]:
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get(address)
    yield browser
    assert browser.get_log("browser") == []


def shown(browser: WebDriver) -> str:
    return browser.find_element(By.CSS_SELECTOR, ".player output").text


def press(browser: WebDriver, *keys: str) -> None:
    ActionChains(browser).send_keys(*keys).perform()


def row(browser: WebDriver, name: str) -> list[str]:
    """The classes of the cells of a row of the ribbon."""
    lines = browser.find_elements(By.CSS_SELECTOR, ".ribbon tbody tr")
    (line,) = [item for item in lines if item.find_element(By.TAG_NAME, "th").text == name]
    return [cell.get_attribute("class") or "" for cell in line.find_elements(By.TAG_NAME, "td")]


def test_the_illegal_event_is_shown_first_with_its_pointer_marked(page: WebDriver) -> None:
    assert "event 5" in shown(page)
    assert "illegal" in shown(page)
    assert not page.find_element(By.CSS_SELECTOR, ".player mark").is_displayed()
    page.find_element(By.CSS_SELECTOR, ".player summary").click()
    assert page.find_element(By.CSS_SELECTOR, ".player .pointer").text == "/output_ids"
    assert page.find_element(By.CSS_SELECTOR, ".player mark").text == "[104, 101, 108, 111, 33]"
    shown_event = page.find_element(By.CSS_SELECTOR, ".ribbons .faults").text
    assert "1 missing" in shown_event
    states = [item.split()[0] for item in row(page, "ids, the stream")]
    assert states.count("hole") == 1


def test_arrow_keys_step_and_the_address_follows(page: WebDriver) -> None:
    press(page, Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert "event 3" in shown(page)
    assert "illegal" not in shown(page)
    WebDriverWait(page, 30).until(lambda browser: browser.current_url.endswith(f"#{LINK}/3"))
    assert page.find_elements(By.CSS_SELECTOR, ".player mark") == []
    held = page.find_element(By.CSS_SELECTOR, ".holds dl").text
    assert "4: 104, 101, 108, 108" in held
    assert "unread" in row(page, "ids, the stream")[-1]
    press(page, Keys.ARROW_RIGHT)
    assert "event 4" in shown(page)
    assert "now" in row(page, "ids, the stream")[-1]


def test_the_slider_and_the_buttons_are_reached_by_tab_and_say_what_they_do(page: WebDriver) -> None:
    slider = page.find_element(By.CSS_SELECTOR, ".player input")
    slider.send_keys(Keys.HOME)
    assert slider.get_attribute("aria-valuetext") == shown(page)
    assert "event 0" in shown(page)
    press(page, Keys.TAB, Keys.ENTER)
    assert page.switch_to.active_element.accessible_name == "next event"
    assert "event 1" in shown(page)
    press(page, Keys.END)
    assert page.find_element(By.CSS_SELECTOR, ".player output").get_attribute("aria-live") == "polite"
    assert "event 6" in shown(page)


def test_a_link_shows_its_event(page: WebDriver, address: str) -> None:
    page.get(f"{address}#{LINK}/2")
    assert "event 2" in shown(page)
    page.get("about:blank")
    page.get(f"{address}#{LINK}/1")
    assert "event 1" in shown(page)
    page.get("about:blank")
    page.get(f"{address}#{LINK}/99")
    assert "event 5" in shown(page)
    assert page.execute_script("return window.scrollY") > 0
    page.get(f"{address}#nothing/such/1")
    assert shown(page)


def test_a_cell_of_the_ribbon_leads_to_its_event(page: WebDriver) -> None:
    cells = page.find_elements(By.CSS_SELECTOR, ".ribbon tbody tr:last-child td[data-step]")
    cells[1].click()
    assert "event 1" in shown(page)


@pytest.mark.parametrize("width", [400, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_off_at_any_width(page: WebDriver, width: int, scheme: str) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    media = [{"name": "prefers-color-scheme", "value": scheme}]
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    edge = """
        const [frame] = document.querySelectorAll(".scroll");
        frame.scrollLeft = 1000;
        const heads = [...frame.querySelectorAll("tr")].map((line) => line.cells[0].getBoundingClientRect());
        return heads.map((head) => Math.round(head.left - frame.getBoundingClientRect().left));
    """
    assert {left >= 0 for left in page.execute_script(edge)} == {True}  # the names of rows stay in sight
    paper, ink = (
        page.execute_script(f"return getComputedStyle(document.body).{name}")
        for name in ("backgroundColor", "color")
    )
    bright = [sum(map(int, colour[4:-1].split(","))) for colour in (paper, ink)]
    assert (bright[0] > bright[1]) is (scheme == "light")


def test_the_names_of_levels_stay_whole_in_a_narrow_window(browser: WebDriver, address_of_all: str) -> None:
    size = {"width": 400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(address_of_all)
    lines = dict(browser.execute_script(LINES_OF_TITLES))
    assert lines["Core"] == 1
    assert {name for name, number in lines.items() if number > 1} == set()


@pytest.mark.parametrize("opened", [False, True])
def test_a_page_of_many_causes_is_readable_in_a_narrow_window(
    browser: WebDriver, address_of_many_causes: str, opened: bool
) -> None:
    size = {"width": 400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(address_of_many_causes)
    assert len(browser.find_elements(By.CSS_SELECTOR, "details.cause")) > 5
    if opened:
        browser.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 400
    shown, narrow = browser.execute_script(NARROW, 120)
    assert shown > 100
    assert narrow == []


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_only_a_ribbon_is_scrolled_sideways(browser: WebDriver, address_of_all: str, width: int) -> None:
    with window(browser, width):
        browser.get(address_of_all)
        assert scrolled_sideways(browser) == []
