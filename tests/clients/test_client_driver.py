"""The driver of adapters: a client is given up for what it does not read, not for the time that it takes."""

import importlib.util
import itertools
import runpy
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

DRIVER = Path(__file__).parents[2] / "examples" / "clients" / "driver.py"
CASE = {"door": "openai-chat", "case": "long"}


@pytest.fixture
def driver(monkeypatch):
    spec = importlib.util.spec_from_file_location("driver", DRIVER)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    monkeypatch.setattr(loaded, "LIMIT_S", 0.005)
    before = signal.getsignal(signal.SIGPROF)
    yield loaded
    signal.signal(signal.SIGPROF, before)


def busy(looks):
    """A client that works until the driver has looked so often."""

    def client(_base, _case):
        while looks[0] < 5:
            pass
        return {"choices": []}

    return client


@pytest.mark.parametrize("reads", [itertools.count(), itertools.repeat(7)], ids=["reads on", "stands still"])
def test_a_client_is_given_up_once_it_reads_no_more(driver, monkeypatch, reads):
    looks = [0]

    def fetch(path):
        assert path == "/tokenwire/sent/openai-chat/long"
        looks[0] += 1
        return next(reads)

    monkeypatch.setattr(driver, "fetch", fetch)
    held = driver.given_time(busy(looks), "", CASE)
    if looks[0] == 5:
        assert held == {"choices": []}
    else:
        assert looks[0] == 2
        assert held == {"given_up": "after 7 reads: no more was taken in 0.005 s of the processor"}


@pytest.mark.parametrize("fails", [False, True])
def test_a_look_that_comes_behind_the_case_gives_nothing_up(driver, monkeypatch, fails):
    """The signal may be under way when the timer is stopped."""
    monkeypatch.setattr(driver, "fetch", lambda _path: 7)

    def set_timer(_which, seconds, *_):
        for _ in range(0 if seconds else 2):
            signal.getsignal(signal.SIGPROF)(signal.SIGPROF, None)

    monkeypatch.setattr(signal, "setitimer", set_timer)

    def client(_base, _case):
        if fails:
            raise ValueError("no")
        return {"choices": []}

    assert driver.given_time(client, "", CASE) == ({"error": "ValueError: no"} if fails else {"choices": []})


def test_the_adapter_of_langchain_reports_a_choice_without_reasoning(driver, monkeypatch):
    chunk = SimpleNamespace(
        tool_call_chunks=[],
        usage_metadata={"input_tokens": 1, "output_tokens": 2},
        response_metadata={"finish_reason": "stop"},
        content="Tok",
    )
    model = SimpleNamespace(stream=lambda _messages: [chunk])
    monkeypatch.setitem(sys.modules, "driver", driver)
    monkeypatch.setitem(sys.modules, "langchain_openai", SimpleNamespace(ChatOpenAI=lambda **_: model))
    monkeypatch.setenv("TOKENWIRE_URL", "http://127.0.0.1:1")
    adapter = runpy.run_path(str(DRIVER.with_name("langchain_client.py")))
    held = adapter["hold"](None, {"request": {"model": "m", "messages": []}, "leave": False})
    assert held == {
        "choices": [{"index": 0, "text": "Tok", "finish": "stop", "calls": []}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }
