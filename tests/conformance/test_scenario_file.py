"""A scenario in a file: asks and requests as data, which `check` sends like those of the suite."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from canned import CannedSender
from typer.testing import CliRunner

from tokenwire.asking.planning import planned
from tokenwire.asking.scenario import SCENARIOS, Conversation, Transcript, load_scenarios
from tokenwire.asking.scenario_file import as_scenario_file, load_scenario_file
from tokenwire.cli import app
from tokenwire.demo_server import demo_server
from tokenwire.dialects.dialect import load_dialects
from tokenwire.judging.verdict import ExitStatus
from tokenwire.settings import Settings
from tokenwire.target.advertised import Advertised
from tokenwire.usage_error import UsageError
from tokenwire.wire.exchange import HttpRequest

BODY = {"input_ids": [65], "sampling_params": {"max_new_tokens": 9}, "stream": True}
ASKS = """
scenario: sixth-token
provokes: Streams that lose their sixth token.
asks:
  whole: {input_ids: [[65, 66]], max_new_tokens: 8}
"""


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """What files made known is forgotten after a test."""
    load_scenario_file.cache_clear()
    before = dict(load_scenarios())
    yield
    SCENARIOS.clear()
    SCENARIOS.update(before)


def written(folder: Path, text: str) -> str:
    path = folder / "scenario.yaml"
    path.write_text(text, "utf-8")
    return str(path)


def answers(name: str, dialect: str) -> dict[str, HttpRequest]:
    talk = Conversation(name, load_dialects()[dialect], CannedSender(), Advertised(), Transcript())
    asyncio.run(SCENARIOS[name].run(talk))
    return {stream.exchange.label: stream.exchange.request for stream in talk.transcript.streams}


def test_asks_go_to_every_endpoint_and_requests_to_the_one_that_they_name(tmp_path: Path) -> None:
    found = as_scenario_file(
        "found", "A token is lost.", {"as-found": HttpRequest("POST", "/generate", BODY)}
    )
    name = load_scenario_file(written(tmp_path, f"{found}asks:\n  plain: {{text: [Hello], n: 2}}\n"))
    assert set(answers(name, "sglang-generate")) == {"as-found", "plain"}
    assert answers(name, "sglang-generate")["as-found"].body == BODY
    others = answers(name, "openai-completions")
    assert set(others) == {"plain"}
    assert others["plain"].body["prompt"] == "Hello"
    assert others["plain"].body["n"] == 2


@pytest.mark.parametrize("raw", [b'{"text": "\xc3\xa9', b"\xff\xfe\x00", b" \r\n\x07\xe2\x80\xa8"])
def test_a_body_that_is_no_json_is_sent_as_it_was(tmp_path: Path, raw: bytes) -> None:
    sent = HttpRequest("POST", "/generate", None, raw)
    name = load_scenario_file(written(tmp_path, as_scenario_file("broken", "Half a body.", {"one": sent})))
    assert answers(name, "sglang-generate") == {"one": sent}


def test_json_that_yaml_cannot_hold_is_sent_as_it_was(tmp_path: Path) -> None:
    sent = HttpRequest("POST", "/generate", {"text": "\ud800 \u2028\x85"})
    name = load_scenario_file(written(tmp_path, as_scenario_file("broken", "Half a pair.", {"one": sent})))
    assert json.loads(answers(name, "sglang-generate")["one"].raw_body or b"") == sent.body


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("scenario: x\nprovokes: y\n", "has no requests"),
        ("- 1", "is not a table"),
        ("scenario: [", "scenario.yaml"),
        (ASKS.replace("max_new_tokens", "max_tokens"), "there is no 'max_tokens'"),
        (ASKS.replace("sixth-token", "../up"), "is not a name"),
        (ASKS.replace("sixth-token", "probe"), "scenario 'probe' exists"),
        (
            "scenario: x\nprovokes: y\nrequests:\n  one: {path: /nowhere, body: {}}\n",
            "no dialect has POST /nowhere",
        ),
    ],
)
def test_a_file_that_is_no_scenario_is_refused_with_the_way_out(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(UsageError, match="--scenario-file") as refused:
        load_scenario_file(written(tmp_path, text))
    assert words in str(refused.value)


def test_a_plan_asks_it_alone_and_repeats_its_option(tmp_path: Path) -> None:
    path = written(tmp_path, ASKS)
    plan = planned(Settings(target="http://127.0.0.1:1", scenario_file=(path,)))
    assert plan.settings.scenario == ("sixth-token",)
    assert plan.asked_with == ("--scenario-file", path)


def test_check_runs_it_red_on_a_server_that_errs(tmp_path: Path) -> None:
    found = as_scenario_file(
        "lost", "The sixth token is lost.", {"a": HttpRequest("POST", "/generate", BODY)}
    )
    with demo_server(("token-lost",)) as url:
        words = ["check", "--target", url, "--no-keep", "--scenario-file", written(tmp_path, found)]
        result = CliRunner().invoke(app, words)
    assert result.exit_code == ExitStatus.VIOLATION, result.output
    assert "incremental-ids-are-new  in lost" in result.output
    assert f"--scenario-file {tmp_path}/scenario.yaml" in "".join(result.output.split("\n"))
    missing = CliRunner().invoke(app, ["check", "--target", url, "--scenario-file", "nowhere.yaml"])
    assert missing.exit_code == 2
    assert "nowhere.yaml cannot be read" in missing.output
