"""The inspector in a browser: the demo's server is asked by the form, and what is wrong becomes a test."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from recorded import streamed
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.support.ui import Select
from selenium.webdriver.support.wait import WebDriverWait

from tokenwire.demo_server import demo_server
from tokenwire.judging.verdict import ExitStatus
from tokenwire_live.inspecting.watched import exchange_page
from tokenwire_live.watch.judging import Opinion
from tokenwire_live.watch.violation_folder import ViolationFolder

PATIENCE_S = 120
COUNTING = """
window.messages = 0;
window.EventSource = class extends EventSource {
  constructor(url) { super(url); this.addEventListener("message", () => { window.messages += 1; }); }
};
"""
"""Counts what the page was told."""


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with demo_server(("token-lost",)) as url:
        yield url


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def address(target: str, kept: Path) -> Iterator[str]:
    words = ["inspect", "--target", target, "--no-open", "--keep", str(kept), "--twin", target]
    command = [sys.executable, "-m", "tokenwire", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0


@pytest.fixture
def page(browser: WebDriver, address: str) -> Iterator[WebDriver]:
    size = {"width": 1200, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get("about:blank")
    browser.get_log("browser")
    counting = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": COUNTING})
    browser.get(address)
    yield browser
    browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", counting)
    assert browser.get_log("browser") == []


def until(browser: WebDriver, script: str) -> object:
    return WebDriverWait(browser, PATIENCE_S, 0.02).until(
        lambda _: browser.execute_script(f"return {script}")
    )


def field(browser: WebDriver, name: str) -> str:
    """The id of the input of a field."""
    label = next(
        label for label in browser.find_elements(By.CSS_SELECTOR, "#fields label") if label.text == name
    )
    return str(label.get_attribute("for"))


def fill(browser: WebDriver, name: str, value: str) -> None:
    """Write a field of the form."""
    element = browser.find_element(By.ID, field(browser, name))
    browser.execute_script(
        "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('change'))", element, value
    )


def body(browser: WebDriver) -> dict:
    return json.loads(browser.execute_script("return document.getElementById('body').value"))


def send(browser: WebDriver) -> None:
    browser.find_element(By.ID, "send").click()


def press(browser: WebDriver, selector: str, words: str) -> None:
    """Click as a hand does, while the page is told more: what was pressed is still there at the release."""
    place = f"""
        const button = document.querySelector('{selector}');
        button.scrollIntoView({{block: 'center'}});
        const box = button.getBoundingClientRect();
        return [box.x + box.width / 2, box.y + box.height / 2];
    """
    x, y = browser.execute_script(place)
    mouse = {"x": x, "y": y, "button": "left", "clickCount": 1}
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mousePressed", **mouse})
    before = browser.execute_script("return window.messages")
    until(browser, f"window.messages > {before} + 2")
    assert browser.execute_script(f"return document.elementFromPoint({x}, {y}).textContent") == words
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseReleased", **mouse})


MOST_IN_A_FRAME = """
window.most = 0;
let since = 0;
const written = ({ target }) => target.tagName === 'TBODY';
const watcher = new MutationObserver((all) => { since += all.filter(written).length; });
watcher.observe(document.getElementById('rows'), { childList: true, subtree: true });
const count = () => { window.most = Math.max(window.most, since); since = 0; requestAnimationFrame(count); };
count();
"""


def test_a_hundred_streams_leave_the_page_free(page: WebDriver) -> None:
    """A row is written at most once a frame, and the form answers meanwhile."""
    page.execute_script(MOST_IN_A_FRAME)
    fill(page, "input_ids", "[65, 66]")
    fill(page, "sampling_params.max_new_tokens", "20")
    page.execute_script("document.getElementById('times').value = 100")
    send(page)
    until(page, "document.querySelectorAll('#rows tbody tr').length === 100")
    fill(page, "sampling_params.max_new_tokens", "21")
    assert body(page)["sampling_params"]["max_new_tokens"] == 21
    states = "[...document.querySelectorAll('#rows tbody td:nth-child(2)')]"
    until(page, f"{states}.every((cell) => cell.textContent === 'complete')")
    assert 1 <= page.execute_script("return window.most") <= 200


SIMULATED_SOURCE = """
window.EventSource = class extends EventTarget {
  constructor() { super(); window.source = this; }
  close() {}
};
"""
THREE_SECONDS = """
const [done] = arguments;
const row = (number, state, more) => ({
  number, state, to: "target", path: "/generate", open: state !== "complete", status: 200, bytes: 100,
  first: 0.01, seconds: null, ...more,
});
const ended = { seconds: 0.2, tokens: 20, violated: ["ids-are-counted"] };
let pulse = 0;
function next() {
  if (pulse === 30) return done();
  const rows = [];
  for (let place = 10 * pulse + 1; place <= 10 * pulse + 10; place += 1) {
    rows.push(row(place, "waiting"));
    if (place > 10) rows.push(row(place - 10, "under way"));
    if (place > 20) rows.push(row(place - 20, "complete", ended));
  }
  window.source.onmessage({ data: JSON.stringify({ rows, gone: [] }) });
  pulse += 1;
  requestAnimationFrame(() => requestAnimationFrame(next));
}
window.source.onopen();
next();
"""
"""What the page is told of 100 streams a second: ten messages in each, of ten that begin and ten that end."""


def test_the_page_has_time_left_at_a_hundred_streams_a_second(page: WebDriver, address: str) -> None:
    """Counted is what its thread takes of the processor: other programs make it no longer."""
    script = page.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": SIMULATED_SOURCE})
    page.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    page.get(address)

    def taken() -> float:
        metrics = page.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")

    before = taken()
    page.set_script_timeout(PATIENCE_S)
    page.execute_async_script(THREE_SECONDS)
    assert taken() - before < 3
    assert len(page.find_elements(By.CSS_SELECTOR, "#rows tbody tr")) == 200
    page.execute_cdp_cmd("Performance.disable", {})
    page.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)


def test_form_and_body_are_two_ways_to_say_the_same(page: WebDriver) -> None:
    fill(page, "sampling_params.max_new_tokens", "7")
    fill(page, "sampling_params.stop", '["QZ", "!"]')
    assert body(page)["sampling_params"] == {"max_new_tokens": 7, "temperature": 0.0, "stop": ["QZ", "!"]}
    page.execute_script(
        "const body = document.getElementById('body');"
        "body.value = JSON.stringify({input_ids: [65], stream: false, beyond: 1});"
        "body.dispatchEvent(new Event('input'))"
    )
    stream = page.find_element(By.ID, field(page, "stream"))
    assert Select(stream).first_selected_option.text == "false"
    fill(page, "sampling_params.temperature", "0.5")
    assert body(page) == {
        "input_ids": [65],
        "stream": False,
        "beyond": 1,
        "sampling_params": {"temperature": 0.5},
    }
    fill(page, "sampling_params.temperature", "")
    assert body(page) == {"input_ids": [65], "stream": False, "beyond": 1}


def test_a_fault_appears_at_its_event_while_the_stream_is_open_and_becomes_a_test(
    page: WebDriver, kept: Path
) -> None:
    fill(page, "input_ids", "[65, 66]")
    fill(page, "sampling_params.max_new_tokens", "4000")
    send(page)
    until(page, "document.querySelector('#answer .violated a')")
    state = "document.querySelector('#rows tbody td:nth-child(2)').textContent"
    assert page.execute_script(f"return {state}") == "under way"
    until(page, "document.querySelector('#answer .violated').textContent.includes('incremental-ids-are-new')")
    press(page, "#answer .violated [data-event]", "event 5")
    until(page, "document.querySelector('.player output').textContent.startsWith('event 5,')")
    assert page.execute_script(f"return {state}") == "under way"
    press(page, "#rows tbody [aria-label^=stop]", "stop")
    until(page, f"{state} === 'hung-up'")
    until(page, "document.querySelector('#answer .ending').textContent.includes('hung-up')")
    page.execute_script("document.getElementById('name').value = 'Sixth token'")
    page.find_element(By.ID, "keep").click()
    until(page, "!document.getElementById('kept').hidden")
    lines = page.find_element(By.ID, "kept").text.splitlines()
    assert {path.name for path in kept.iterdir()} == {
        "sixth-token.jsonl.gz",
        "sixth-token.expected.yaml",
        "sixth-token.yaml",
    }
    assert lines[0].startswith("curl -sN -X POST")
    check = subprocess.run(
        [sys.executable, "-m", *lines[-1].split(), "--no-keep"], capture_output=True, text=True, check=False
    )
    assert check.returncode == ExitStatus.VIOLATION, check.stderr
    assert re.search("FAIL  .* in sixth-token", check.stdout)
    same = subprocess.run([sys.executable, "-m", *lines[-2].split()], check=False)
    assert same.returncode == 0


@pytest.mark.parametrize("width", [400, 1280])
def test_the_answer_is_in_view_and_the_table_fits(page: WebDriver, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    send(page)
    until(page, "document.querySelector('#answer .ending')?.textContent.includes('complete')")
    top = page.execute_script("return document.getElementById('answer').getBoundingClientRect().top")
    assert 0 < top < 900 / 2
    place = page.find_element(By.CSS_SELECTOR, ".wide-table:has(#rows)")
    assert place.get_property("scrollWidth") <= place.get_property("clientWidth")
    labels = [label.text for label in page.find_elements(By.CSS_SELECTOR, "#fields label")]
    assert "sampling_params.max_new_tokens" in [label.replace("\n", "") for label in labels]


def test_a_request_goes_to_the_twin_too(page: WebDriver) -> None:
    Select(page.find_element(By.ID, "twice")).select_by_visible_text("the twin")
    send(page)
    until(page, "document.querySelector('#rows tbody').textContent.includes('complete, twin')")
    until(page, "document.querySelector('#answer .difference').textContent.includes('are the same')")


def test_what_a_watcher_kept_is_walked_through(browser: WebDriver, tmp_path: Path) -> None:
    lost = streamed("watch/1", forgets_an_id=True)
    path = ViolationFolder(tmp_path, 1 << 20).keep("cumulative-ids-extend", lost)
    opinion = Opinion(True, dialect="sglang-generate", recorded=path, exchange="watch/1")
    (tmp_path / "page.html").write_text(exchange_page(opinion), "utf-8")
    browser.get((tmp_path / "page.html").as_uri())
    browser.find_element(By.CSS_SELECTOR, ".violated [data-event]").click()
    assert "event 5" in browser.find_element(By.CSS_SELECTOR, ".player output").text
