"""Evicted answers: few are in memory at once, and all facts and verdicts stay the same."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import re
import signal
import weakref
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from recorded import whole, write_folder
from typer.testing import CliRunner

from tokenwire import evicted
from tokenwire.ask import Asked
from tokenwire.checks import invariance
from tokenwire.checks.check import select
from tokenwire.checks.reading.fields import bringing
from tokenwire.cli import app
from tokenwire.dialects.dialect import Dialect
from tokenwire.evicted import AnswerStore, EvictedAnswer
from tokenwire.judging.judge import Judgement, combined, judge, judge_runs
from tokenwire.judging.verdict import ExitStatus
from tokenwire.record import FACTS, Answer, ChoiceFacts, Finish, Stream
from tokenwire.replay import replay
from tokenwire.report.document import document
from tokenwire.report.page import page
from tokenwire.report.subject import Subject
from tokenwire.report.trace import trace
from tokenwire.requirement import load_requirements
from tokenwire.wire import json_lines
from tokenwire.wire.capture import CaptureChunk, Located, capture_chunks, exchange_lines, read_capture
from tokenwire.wire.exchange import Ending, Exchange, ExchangeHead
from tokenwire.wire.foreign_capture import any_chunks
from tokenwire.wire.json_lines import CaptureError
from tokenwire.wire.spill import CaptureReader, Offset, RandomCache, SpillFile

FIXTURES = Path(__file__).parents[2] / "fixtures"
CAPTURE = FIXTURES / "litellm" / "1.106.2" / "live-before-vllm.jsonl.gz"
HELD_TOGETHER = FIXTURES / "sglang" / "0.5.12.post1" / "live-cumulative.jsonl.gz"
"""Many of its answers came from the cache."""


def report(subject: Subject, judgements: list[Judgement]) -> tuple[object, ...]:
    """What all its forms are made from."""
    written = document(subject, judgements, 0)
    return written, page(written, judgements), trace("all", judgements)


def nothing_held(jobs: int = 1) -> AnswerStore:
    return AnswerStore(held=0, content=1, facts=1, jobs=jobs)


@pytest.fixture
def most_alive(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many streams were held with their content whenever one more was read."""
    read, alive, counts = Dialect.read, [], []

    def counted(self: Dialect, exchange: Exchange, **hints: Any) -> Stream:
        stream = read(self, exchange, **hints)
        alive.extend(weakref.ref(choice) for choice in (stream.choices or (stream,))[:1])
        alive[:] = [item for item in alive if item() is not None]
        counts.append(len(alive))
        return stream

    monkeypatch.setattr(Dialect, "read", counted)
    return counts


def test_a_finish_is_unpickled_with_all_its_fields() -> None:
    """Its status above all: by that an abort is known as a failure."""
    found = {"type": "abort", "matched": 7, "length": 3, "raw": {"status_code": 400}, "code": 400}
    assert found.keys() == {field.name for field in fields(Finish)}
    finish = Finish(**found)
    again = pickle.loads(pickle.dumps(finish))
    assert (again, again.failed) == (finish, True)


def test_what_was_asked_is_unpickled_with_the_type_of_each_value() -> None:
    asked = Asked(n=True, frequency_penalty=0, stop=("x",), echo=False)  # type: ignore[arg-type]
    again = pickle.loads(pickle.dumps(asked))
    assert repr(again) == repr(asked)
    assert asked.__getstate__() == {
        "n": True,
        "frequency_penalty": 0,
        "stop": ("x",),
        "logit_bias": {},
        "sent": {},
    }


def test_few_streams_are_held_at_once_and_are_judged_as_if_all_were(most_alive: list[int]) -> None:
    put_away = replay([CAPTURE], store=nothing_held())
    judged = judge(put_away.runs)
    reported = report(put_away, judged)
    streams = [stream for run in put_away.runs for stream in run.streams]
    assert len(streams) > 50
    assert all(isinstance(stream, EvictedAnswer) for stream in streams)
    assert max(most_alive) <= 4  # one is at hand, and one is being read; of a pair, either
    held = replay([CAPTURE])
    assert all(isinstance(stream, Stream) for run in held.runs for stream in run.streams)
    again = judge(held.runs)
    assert again == judged
    assert report(held, again) == reported


def test_what_is_little_is_held_and_of_what_is_much_nothing(tmp_path: Path) -> None:
    few, many = (
        write_folder(tmp_path / name, *map(whole, "abcdefgh"[:count]))
        for name, count in (("few", 2), ("many", 8))
    )
    size = len(whole("a").body)

    def types_of(path: Path) -> set[type]:
        (run,) = replay([path], store=AnswerStore(held=4 * size)).runs
        return {type(stream) for stream in run.streams}

    assert types_of(few) == {Stream}
    assert types_of(many) == {EvictedAnswer}


def test_checks_of_a_whole_run_share_what_they_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """How often facts are unpickled if only the last ones are cached."""
    offsets: list[Offset] = []
    read = SpillFile.read

    def counted(self: SpillFile, offset: Offset) -> object:
        offsets.append(offset)
        return read(self, offset)

    monkeypatch.setattr(SpillFile, "read", counted)
    (run,) = replay([CAPTURE], store=nothing_held()).runs
    offsets.clear()
    judge([run])
    assert len(offsets) < 72 * len(run.streams)


def test_a_selection_reads_nothing_again(monkeypatch: pytest.MonkeyPatch, most_alive: list[int]) -> None:
    monkeypatch.setitem(FACTS, Stream, dict(FACTS[Stream]))

    @select
    def streamed(stream: Stream) -> bool:
        return stream.asked.stream

    @select
    def refused_or_broken(stream: Stream) -> bool:
        return stream.refused or stream.choices[-1].emissions[-1].finish is not None

    (run,) = replay([CAPTURE], store=nothing_held()).runs
    (held,) = replay([CAPTURE]).runs
    names = [stream.exchange.name for stream in held.streams if stream.asked.stream]
    fetched: list[object] = []
    monkeypatch.setattr(SpillFile, "read", lambda _, offset: fetched.append(offset))
    most_alive.clear()
    assert [stream.exchange.name for stream in streamed(run.streams)] == names
    assert not fetched
    assert not most_alive
    silent = [stream for stream in held.streams if not stream.choices and not stream.refused]
    assert silent
    with pytest.raises(IndexError):
        refused_or_broken(held.streams)
    monkeypatch.undo()
    with pytest.raises(IndexError):
        refused_or_broken(run.streams)


def test_where_an_answer_ends_is_known_without_its_content(most_alive: list[int]) -> None:
    (run,) = replay([HELD_TOGETHER], store=nothing_held()).runs
    choices = [item for stream in run.streams for item in stream.choices if item.ends_with("output_ids")]
    due = [bringing(choice.load(), "output_ids") for choice in choices]
    most_alive.clear()
    assert [bringing(choice, "output_ids") for choice in choices] == due
    assert len(choices) > 50
    assert not most_alive  # nothing was read again


def test_answers_that_are_held_together_are_each_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the one and the other is looked at, and be both too large to stay at hand together."""
    read = Dialect.read
    names: list[str] = []

    def counted(self: Dialect, exchange: Exchange, **hints: Any) -> Stream:
        names.append(exchange.name)
        return read(self, exchange, **hints)

    monkeypatch.setattr(Dialect, "read", counted)
    row = load_requirements()["cache-changes-nothing"]
    (run,) = replay([HELD_TOGETHER], store=nothing_held()).runs
    judge([run], [row])  # what is known of the target is found out
    pairs = len(list(invariance._with_and_without(run.answers, "cached_tokens")))
    assert pairs > 10
    names.clear()
    judged = judge([run], [row])
    assert sum(observation.witnesses for observation in judged) > pairs
    assert len(names) <= len(run.streams) + pairs


def test_facts_are_the_same_in_memory_and_evicted() -> None:
    """With the type of each value: 1 and True are equal."""
    (evicted,), (held,) = (replay([CAPTURE], store=store).runs for store in (nothing_held(), AnswerStore()))
    names = [field.name for field in fields(ChoiceFacts) if field.name != "cache"]
    assert len(evicted.streams) == len(held.streams)
    for stream, other in zip(evicted.streams, held.streams, strict=True):
        for name in (*Answer.__annotations__, "answered"):
            if name not in {"exchange", "choices"}:
                assert repr(getattr(stream, name)) == repr(getattr(other, name))
        for name in (*ExchangeHead.__annotations__, "size", "last_read", "label", "busy"):
            if name != "request":
                assert getattr(stream.exchange, name) == getattr(other.exchange, name)
        for ours, theirs in zip(stream.choices, other.choices, strict=True):
            assert [repr(getattr(ours, n)) for n in names] == [repr(getattr(theirs, n)) for n in names]


@pytest.fixture
def in_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each exchange of a capture, and each answer, is a part that a process may be given."""
    monkeypatch.setattr(json_lines, "_PIECE", 1 << 10)
    monkeypatch.setattr(evicted, "together", lambda parts, _size: ((part,) for part in parts))


@pytest.mark.usefixtures("in_small_parts")
@pytest.mark.parametrize("folder", [False, True])
def test_processes_that_share_the_reading_make_the_same_report(tmp_path: Path, folder: bool) -> None:
    path = CAPTURE
    if folder:
        path = write_folder(tmp_path / "folder", *read_capture(CAPTURE))
    rows = list(load_requirements().values())[::4]
    reports = []
    for jobs in (1, 2):
        subject = replay([path], store=nothing_held(jobs))
        assert all(isinstance(stream, EvictedAnswer) for run in subject.runs for stream in run.streams)
        reports.append(report(subject, combined(judge_runs(subject.runs, rows, jobs=jobs))))
    assert reports[0] == reports[1]


@pytest.mark.usefixtures("in_small_parts")
def test_what_processes_share_the_parent_does_not_read_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, read, decoded = os.getpid(), Dialect.read, CaptureChunk.located
    here: list[str] = []

    def noted(self: Dialect, exchange: Exchange, **hints: Any) -> Stream:
        here.extend([exchange.name] * (os.getpid() == parent))
        return read(self, exchange, **hints)

    def noted_too(self: CaptureChunk) -> Iterator[Located]:
        here.extend([str(self.span.path)] * (os.getpid() == parent))
        return decoded(self)

    monkeypatch.setattr(Dialect, "read", noted)
    monkeypatch.setattr(CaptureChunk, "located", noted_too)
    names = [f"sglang-generate/by-hand/{letter}" for letter in "abcdefgh"]  # they tell the dialect
    folder = write_folder(tmp_path / "folder", *map(whole, names))
    (run,) = replay([folder], store=AnswerStore(held=-1, jobs=2)).runs
    assert [stream.exchange.name for stream in run.streams] == names
    assert [stream.choices[0].text for stream in run.streams] == ["hello!"] * 8
    assert here == []


@pytest.mark.usefixtures("in_small_parts")
def test_what_one_process_cannot_read_is_told_as_if_there_were_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Dialect.read

    def fails_at_two(self: Dialect, exchange: Exchange, **hints: Any) -> Stream:
        if exchange.name in "fg":
            raise RuntimeError(f"cannot read {exchange.name}")
        return read(self, exchange, **hints)

    folder = write_folder(tmp_path / "folder", *map(whole, "abcdefgh"))
    monkeypatch.setattr(Dialect, "read", fails_at_two)
    for jobs in (1, 2):
        with pytest.raises(RuntimeError, match="cannot read f"):
            replay([folder], store=nothing_held(jobs))
    (folder / "c.jsonl").write_text('{"kind": "request"}\n')
    for jobs in (1, 2):
        with pytest.raises(CaptureError, match=r"c\.jsonl, line 1: not a line of a capture"):
            replay([folder], store=nothing_held(jobs))


@pytest.mark.usefixtures("in_small_parts")
def test_a_process_that_is_killed_ends_the_replay_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = os.getpid()

    def kills_its_process(self: Dialect, exchange: Exchange, **_hint: object) -> Stream:
        assert os.getpid() != parent
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    folder = write_folder(tmp_path / "folder", *map(whole, "abcd"))
    monkeypatch.setattr(Dialect, "read", kills_its_process)
    monkeypatch.setattr("tokenwire.commands.replay.AnswerStore", nothing_held)
    result = CliRunner().invoke(app, ["replay", str(folder), "--jobs", "2"])
    assert result.exit_code == ExitStatus.HARNESS_ERROR
    words = "a judging process was killed, perhaps because memory ran out"
    assert result.stderr == f"{words}; use fewer --jobs\n"


def test_a_spill_file_reads_what_was_written() -> None:
    spill = SpillFile()
    values = [{"a": [1, 1.0, True, None]}, b"x" * 100_000, "\ud800"]
    offsets = [spill.write(pickle.dumps(value)) for value in values]
    assert [spill.read(offset) for offset in reversed(offsets)] == values[::-1]


@pytest.mark.parametrize("zipped", [False, True])
def test_an_exchange_is_read_again_from_its_lines(tmp_path: Path, zipped: bool) -> None:
    """Also one without its end, before another one and at the end of a capture that was cut off."""
    lines = [json.dumps(line).encode() for name in "abc" for line in exchange_lines(whole(name))]
    ends = [number for number, line in enumerate(lines) if b'"kind": "end"' in line]
    del lines[ends[1]]
    data = b"\n".join(lines)[:-30]
    path = tmp_path / ("cut.jsonl.gz" if zipped else "cut.jsonl")
    path.write_bytes(gzip.compress(data)[:-3] if zipped else data)
    located = [item for chunk in capture_chunks(path) for item in chunk.located()]
    assert [answer.exchange.name for answer in located] == list("abc")
    assert [answer.exchange.ending for answer in located] == [
        Ending.COMPLETE,
        Ending.CANCELLED,
        Ending.CANCELLED,
    ]
    captures = CaptureReader()
    captures.add(path)
    again = [captures.exchange(answer.exchange.name, answer.span) for answer in reversed(located)]
    assert again == [answer.exchange for answer in reversed(located)]
    assert "".join(item.detail for item in again).count("cut off in line") == 1


def test_all_exchanges_of_a_recording_are_read_again() -> None:
    located = [item for chunk in any_chunks(CAPTURE) for item in chunk.located()]
    captures = CaptureReader()
    captures.add(CAPTURE)
    again = [captures.exchange(answer.exchange.name, answer.span) for answer in located]
    assert again == [answer.exchange for answer in located]


@pytest.mark.parametrize("change", ["removed", "shortened", "rewritten", "other"])
def test_a_capture_that_changes_while_it_is_replayed_is_named(tmp_path: Path, change: str) -> None:
    folder = write_folder(tmp_path / "folder", *map(whole, "ab"))
    (run,) = replay([folder], store=nothing_held()).runs
    path = next(folder.rglob("a.jsonl"))
    if change == "removed":
        path.unlink()
    elif change == "shortened":
        path.write_bytes(path.read_bytes()[:100])
    elif change == "rewritten":
        path.write_bytes(b"\n" + path.read_bytes())
    else:
        path.write_bytes(next(folder.rglob("b.jsonl")).read_bytes())
    for stream in run.streams:
        if stream.exchange.name == "a":
            with pytest.raises(CaptureError, match=re.escape(str(path))):
                _ = stream.load()
        else:
            assert stream.load().events


def test_a_random_cache_stays_within_its_bound() -> None:
    gone: list[int] = []
    cache: RandomCache[int] = RandomCache(10, gone.append)
    fetched: list[int] = []

    def get(key: int, size: int) -> int:
        def fetch() -> int:
            fetched.append(key)
            return key

        return cache.get(key, size, fetch)

    for key in range(100):
        assert get(key, 4) == key
        assert len(cache) <= 2
    assert get(99, 4) == 99
    assert fetched == list(range(100))
    get(100, 1000)
    assert sorted(gone) == list(range(100))
    assert len(cache) == 1
