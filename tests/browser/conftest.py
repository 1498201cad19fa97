"""A browser without a window, and the report of a recorded stream that lost a token."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from recorded import streamed, whole, write_folder
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.remote.webdriver import WebDriver

from tokenwire.commands.reporting import Reporting, judge_and_report
from tokenwire.replay import replay
from tokenwire.report.console import make_console
from tokenwire.report.files import Outputs
from tokenwire.settings import Settings

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.fail("chromium and chromedriver are needed: `apt install chromium chromium-driver`")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    profile = tmp_path_factory.mktemp("profile")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield started
    finally:
        started.quit()


def _report(tmp_path_factory: pytest.TempPathFactory, settings: Settings) -> str:
    """The page of a cumulative stream that has lost the third id in its last event."""
    folder = tmp_path_factory.mktemp("report")
    capture = write_folder(folder / "recorded", whole("whole"), streamed("stream", forgets_an_id=True))
    page = folder / "report.html"
    judge_and_report(replay([capture]), Reporting(Outputs(html=page), settings), make_console())
    return page.as_uri()


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of one requirement."""
    return _report(tmp_path_factory, Settings(requirement=("cumulative-ids-extend",)))


@pytest.fixture(scope="session")
def address_of_all(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of all requirements."""
    return _report(tmp_path_factory, Settings())


@pytest.fixture(scope="session")
def address_of_many_causes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a real server with many causes."""
    capture = Path(__file__).parents[2] / "fixtures/transformers/5.23.0/live-serve.jsonl.gz"
    page = tmp_path_factory.mktemp("report") / "report.html"
    judge_and_report(replay([capture]), Reporting(Outputs(html=page), Settings()), make_console())
    return page.as_uri()
