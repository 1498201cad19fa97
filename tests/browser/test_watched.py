"""The live page of `tokenwire watch` is renewed in place: what a reader is at stays where it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.support.wait import WebDriverWait
from sideways import DESKTOP, PHONE, scrolled_sideways, window

from tokenwire_live.inspecting.watched import live_page
from tokenwire_live.watch.counts import Counts
from tokenwire_live.watch.judging import Opinion, Violation
from tokenwire_live.watch.latency import Histogram, Latencies

PATIENCE_S = 60
RENEWED_BY_THE_TEST = "window.setInterval = (renew) => { window.renew = renew; };"
NAMES = ("ids-are-counted", "incremental-ids-are-new")


class Watched:
    """A watcher's page, and what it counted so far."""

    def __init__(self, folder: Path) -> None:
        self.counts, self.numbers, self.folder = Counts(), 0, folder

    def violated(self, requirement: str) -> None:
        self.numbers += 1
        kept = self.folder / f"{self.numbers}.jsonl.gz"
        kept.touch()
        violation = Violation(requirement, "MUST", "one too many", 1, "/output_ids", "[1, 2]")
        first = Histogram()
        first.add(0.01 * self.numbers)
        opinion = Opinion(True, "", (violation,), dialect="d", model="m", latencies=Latencies(first))
        self.counts.add(replace(opinion, exchange=f"watch/{self.numbers}", recorded=str(kept)))

    def page(self) -> str:
        return live_page(
            self.counts, target="http://t", listening="x:1", waiting=0, under_way=0, in_full=True
        )


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


@pytest.fixture
def page(browser: WebDriver, watched: Watched) -> Iterator[WebDriver]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = watched.page().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # so it is called
            """Log nothing."""

    watched.violated(NAMES[0])
    source = {"source": RENEWED_BY_THE_TEST}
    script = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", source)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        browser.get(f"http://127.0.0.1:{server.server_port}/")
        yield browser
        server.shutdown()
    browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)


def renewed(page: WebDriver) -> None:
    page.execute_async_script("const done = arguments[0]; window.renew().then(done);")


def rows(page: WebDriver, table: str) -> list[str]:
    return [row.text for row in page.find_elements(By.CSS_SELECTOR, f"#{table} tr")][1:]


def test_new_violations_leave_what_a_reader_is_at(page: WebDriver, watched: Watched) -> None:
    link = page.find_element(By.LINK_TEXT, "watch/1")
    page.execute_script("arguments[0].focus(); getSelection().selectAllChildren(arguments[0]);", link)
    watched.violated(NAMES[1])
    watched.violated(NAMES[1])
    renewed(page)
    assert page.switch_to.active_element == link
    assert page.execute_script("return String(getSelection())") == "watch/1"
    assert [row.split()[:2] for row in rows(page, "findings-table")] == [[NAMES[1], "2"], [NAMES[0], "1"]]
    assert "watch/1" in rows(page, "findings-table")[-1]
    assert [row.split()[0] for row in rows(page, "violated-table")] == [NAMES[1], NAMES[0]]
    assert page.title.startswith("3 violations")
    html = page.execute_script("return document.querySelector('main').outerHTML")
    page.refresh()
    assert page.execute_script("return document.querySelector('main').outerHTML") == html


def test_six_requests_of_one_fault_are_a_row_each_requirement(page: WebDriver, watched: Watched) -> None:
    for name in NAMES * 5:
        watched.violated(name)
    renewed(page)
    assert [row.split()[:2] for row in rows(page, "findings-table")] == [[NAMES[1], "5"], [NAMES[0], "6"]]
    assert page.execute_script("return document.documentElement.scrollHeight") < 2000


def test_what_is_gone_is_gone_and_what_was_nowhere_comes(page: WebDriver, watched: Watched) -> None:
    watched.counts.findings.clear()
    watched.counts.gaps["judge-too-slow"] += 1
    renewed(page)
    assert rows(page, "findings-table") == []
    assert rows(page, "gaps-table") == ["judge-too-slow 1"]
    assert rows(page, "models-table")[0].startswith("d m 1 1")


def test_a_watcher_that_has_ended_is_missed(page: WebDriver) -> None:
    page.execute_script("window.fetch = () => Promise.reject(new TypeError('no'))")
    renewed(page)
    WebDriverWait(page, PATIENCE_S).until(lambda _: "has ended" in page.find_element(By.ID, "lost").text)


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_nothing_is_scrolled_sideways(page: WebDriver, watched: Watched, width: int) -> None:
    watched.violated("chat-logprobs-spell-the-text")
    with window(page, width):
        renewed(page)
        assert scrolled_sideways(page) == []
        shown = page.find_element(By.CSS_SELECTOR, "#findings-table tr:last-child").text
    assert "one too many" in shown
