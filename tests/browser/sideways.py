"""Find what a reader of a page has to scroll sideways."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from selenium.webdriver.remote.webdriver import WebDriver

PHONE, DESKTOP = 400, 1280
"""Widths of windows in CSS pixels."""
_WIDER_THAN_SHOWN = """
    const found = [...document.querySelectorAll("html, body *")].filter((element) => {
        const scrolls = ["auto", "scroll"].includes(getComputedStyle(element).overflowX);
        const wider = element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 0;
        return wider && (scrolls || element === document.documentElement);
    });
    return found.map((element) => `${element.localName} ${element.className} ${element.id}`);
"""


@contextmanager
def window(browser: WebDriver, width: int) -> Iterator[None]:
    """Show pages in a window of this width."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def scrolled_sideways(browser: WebDriver) -> list[str]:
    """Return the elements that are wider than what is shown of them. The ribbon of tokens may be."""
    found: list[str] = browser.execute_script(_WIDER_THAN_SHOWN)
    return [words for words in found if words.split()[1:2] != ["scroll"]]
