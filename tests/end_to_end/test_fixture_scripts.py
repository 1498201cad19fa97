"""The scripts that made the fixtures: they run seldom, and must not rot between."""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Imports one of the scripts, as Python does where it runs it."""
    monkeypatch.syspath_prepend(FIXTURES)

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    for name in ("build", "choose", "record_reference", "shorten"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["build", "choose", "record_reference", "shorten"])
def test_a_script_can_be_imported(script, name):
    assert callable(script(name).main)


def test_the_reference_is_recorded_through_its_own_server(script, monkeypatch, tmp_path):
    recording = script("record_reference")
    monkeypatch.setattr(recording, "FIXTURES", tmp_path)
    case = recording.Case("late-key-unpadded", incremental=True, scenarios=("greedy-stream",))
    flags = recording.flags_of(incremental=True)
    with recording.served(flags) as url:
        [(name, entry)] = recording.record(case, url, flags).items()
    assert (tmp_path / name).is_file()
    assert (entry["fault"], entry["flags"]) == ("late-key-unpadded", flags)
    assert entry["exchanges"] > 3


def test_a_fixture_keeps_its_title_when_it_is_made_again(script, monkeypatch, tmp_path):
    build = script("build")
    manifest = tmp_path / "manifest.json"
    manifest.write_text('{"files": {"a": {"title": "A name", "exchanges": 1}}}', "utf-8")
    monkeypatch.setattr(build, "MANIFEST", manifest)
    monkeypatch.setattr(build, "FIXTURES", tmp_path)
    build.note({"a": {"exchanges": 2}, "b": {"exchanges": 3}})
    files = yaml.safe_load(manifest.read_text("utf-8"))["files"]
    assert files == {"a": {"title": "A name", "exchanges": 2}, "b": {"exchanges": 3}}


def answer(
    label: str, text: str, *, started: float = 0.0, duration: float = 1.0, ending: Ending = Ending.COMPLETE
) -> Exchange:
    """A whole answer of a plain chat server."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": "stop",
        "logprobs": None,
    }
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    about = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
    body = json.dumps({**about, "choices": [choice], "usage": usage})
    request = HttpRequest(
        "POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": label}], "max_tokens": 4}
    )
    return Exchange(
        name=f"openai-chat/{label}",
        request=request,
        scenario=label.partition("/")[0],
        status=200,
        headers=(("content-type", "application/json"),),
        reads=(Read(0.1, body.encode()),),
        ending=ending,
        duration=duration,
        started=f"2026-11-22T00:00:{started:06.3f}+00:00",
    )


def noise(seed: int) -> str:
    """Text that does not compress."""
    return "".join(hashlib.sha256(f"{seed} {n}".encode()).hexdigest() for n in range(200))


def test_a_place_of_the_recorder_goes_where_two_reads_hold_it(script):
    build = script("build")
    reads = (Read(0.1, b'{"model": "/tm'), Read(0.2, b'p/x/tiny"}'))
    request = HttpRequest("POST", "/generate", {"model": "/tmp/x/tiny"})
    recorded = replace(answer("a", "hi"), reads=reads, request=request)
    with pytest.raises(ValueError, match="holds /tmp/x/tiny: give it another name"):
        build.elsewhere(recorded, {})
    with pytest.raises(ValueError, match="not as long as"):
        build.elsewhere(recorded, {"/tmp/x/tiny": "tiny"})
    moved = build.elsewhere(recorded, {"/tmp/x/tiny": "models/tiny"})
    assert [read.data for read in moved.reads] == [b'{"model": "mod', b'els/tiny"}']
    assert moved.request.body == {"model": "models/tiny"}


SOME_OF_TEN = 32_000
"""Bytes that some answers of noise take, compressed: enough for a verdict."""


def test_bulk_is_dropped_and_the_verdicts_stay(script, monkeypatch):
    shorten = script("shorten")
    monkeypatch.setattr(shorten, "TALK", SOME_OF_TEN)
    crowd = [answer(f"crowd/{n}", noise(n), started=n) for n in range(12)]
    kept = shorten.shortened([answer("plain/one", "hi"), *crowd], None)
    names = [item.name for item in kept]
    assert names[0] == "openai-chat/plain/one"
    assert 1 < len(names) < 12, "some of the crowd fit"
    assert names[1:] == [item.name for item in crowd[: len(names) - 1]], "the first of them, in their order"
    assert [item.name for item in shorten.shortened([answer("plain/one", "hi"), *crowd], None)] == names


def test_a_choice_names_each_exchange_and_misses_none(script):
    choose = script("choose")
    recorded = [answer(label, "hi") for label in ("st-cjk/c-w", "st-cjk/c-w", "st-at-51/c-w", "u-nul/c-w")]
    keep = {"stops": "*/st-cjk/* */st-at-5?/c-w"}
    kept = list(choose.chosen(recorded, keep))
    assert [item.name.partition("/")[2] for item in kept] == ["st-cjk/c-w", "st-cjk/c-w-2", "st-at-51/c-w"]
    with pytest.raises(ValueError, match=r"no exchange is named \*/gone/\*"):
        list(choose.chosen(recorded, {**keep, "more": "*/gone/*"}))


def test_what_was_under_way_at_a_death_stays(script, monkeypatch):
    shorten = script("shorten")
    monkeypatch.setattr(shorten, "TALK", SOME_OF_TEN)
    crowd = [answer(f"crowd/{n}", noise(n), started=n, duration=0.5) for n in range(10)]
    culprit = answer("crowd/10", noise(10), started=10, duration=5.0)
    dead = answer("crowd/11", noise(11), started=11, ending=Ending.TRUNCATED)
    names = [item.name for item in shorten.shortened([*crowd, culprit, dead], None)]
    assert names[-2:] == ["openai-chat/crowd/10", "openai-chat/crowd/11"]
    assert "openai-chat/crowd/9" not in names


def test_what_a_client_left_stays_with_its_whole_talk(script):
    shorten = script("shorten")
    talk = [answer(f"disconnect/{n}", noise(n), started=n) for n in range(8)]
    talk[3] = answer("disconnect/3", noise(3), started=3, ending=Ending.HUNG_UP)
    assert len(shorten.shortened(talk, None)) == 8
