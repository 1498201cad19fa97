"""Streams that outlive their content: few are held at once, and all that is known of them stays the same."""

from __future__ import annotations

import pickle
import weakref
from dataclasses import fields, replace
from pathlib import Path

import pytest
from recorded import whole, write_folder

from tokenwire import shelved
from tokenwire.dialects.dialect import Dialect
from tokenwire.judging.judge import Judgement, judge
from tokenwire.record import Delivery, Finish, Stream
from tokenwire.replay import replay
from tokenwire.report.document import document
from tokenwire.report.playback import playbacks
from tokenwire.report.subject import Subject
from tokenwire.report.trace import trace
from tokenwire.requirement import load_requirements
from tokenwire.shelved import Cabinet
from tokenwire.wire.exchange import Exchange
from tokenwire.wire.shelf import AtHand, Shelf, Slip

FIXTURES = Path(__file__).parents[2] / "fixtures"
CAPTURE = FIXTURES / "litellm" / "1.106.2" / "live-before-vllm.jsonl.gz"


def report(subject: Subject, judgements: list[Judgement]) -> tuple[object, ...]:
    """What all its forms are made from."""
    told = document(subject, judgements, 0)
    violated = [one for one in judgements if one.violations]
    return told, playbacks(violated), trace("all", judgements)


def nothing_held() -> Cabinet:
    return Cabinet(held=0, content=1, short=1)


@pytest.fixture
def most_alive(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many streams were held with their content whenever one more was read."""
    read, alive, counts = Dialect.read, [], []

    def counted(self: Dialect, exchange: Exchange, *, delivery_hint: Delivery | None = None) -> Stream:
        stream = read(self, exchange, delivery_hint=delivery_hint)
        alive.extend(weakref.ref(one) for one in (stream.choices or (stream,))[:1])
        alive[:] = [one for one in alive if one() is not None]
        counts.append(len(alive))
        return stream

    monkeypatch.setattr(Dialect, "read", counted)
    return counts


def test_a_finish_comes_back_from_the_shelf_with_all_that_it_says() -> None:
    """Its status above all: by that an abort is known as a failure."""
    told = {"type": "abort", "matched": 7, "length": 3, "raw": {"status_code": 400}, "code": 400}
    assert told.keys() == {one.name for one in fields(Finish)}
    finish = Finish(**told)
    again = pickle.loads(pickle.dumps(finish))
    assert (again, again.failed) == (finish, True)


def test_few_streams_are_held_at_once_and_are_judged_as_if_all_were(most_alive: list[int]) -> None:
    put_away = replay([CAPTURE], cabinet=nothing_held())
    judged = judge(put_away.runs)
    reported = report(put_away, judged)
    streams = [stream for run in put_away.runs for stream in run.streams]
    assert len(streams) > 50
    assert not any(stream.at_hand for stream in streams)
    assert max(most_alive) <= 4  # one is at hand, and one is being read; of a pair, either
    held = replay([CAPTURE])
    assert all(stream.at_hand for run in held.runs for stream in run.streams)
    again = judge(held.runs)
    assert again == judged
    assert report(held, again) == reported


def test_what_is_little_is_held_and_of_what_is_much_nothing(tmp_path: Path) -> None:
    few, many = (
        write_folder(tmp_path / name, *map(whole, "abcdefgh"[:count]))
        for name, count in (("few", 2), ("many", 8))
    )
    size = len(whole("a").body)

    def at_hand(path: Path) -> set[bool]:
        (run,) = replay([path], cabinet=Cabinet(held=4 * size)).runs
        return {stream.at_hand for stream in run.streams}

    assert at_hand(few) == {True}
    assert at_hand(many) == {False}


_OFTEN = 64
"""So often an answer is read in short where none is at hand but the last one, be there ever so many."""


def test_checks_of_a_whole_run_share_what_they_read(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []
    fetch = shelved._ShelvedStream._fetch_short

    def counted(self: shelved._ShelvedStream) -> shelved._Short:
        fetched.append(self.exchange.name)
        return fetch(self)

    monkeypatch.setattr(shelved._ShelvedStream, "_fetch_short", counted)
    (run,) = replay([CAPTURE], cabinet=nothing_held()).runs
    fetched.clear()
    judge([run])
    assert len(fetched) < _OFTEN * len(run.streams)


def test_a_changed_copy_holds_all_of_its_fields() -> None:
    (run,) = replay([CAPTURE], cabinet=nothing_held()).runs
    stream = next(stream for stream in run.streams if stream.choices and stream.asked.stream)
    exchange, choice = stream.exchange, stream.choices[0]
    changed = replace(exchange, name="other", request=replace(exchange.request, path="/other"))
    assert changed == replace(stream.whole.exchange, name="other", request=changed.request)
    assert changed.request.body == stream.whole.exchange.request.body
    assert replace(choice, index=7) == replace(stream.whole.choices[0], index=7)
    assert replace(stream, schema="x").events == stream.whole.events


def test_several_processes_read_from_one_shelf() -> None:
    (run,) = replay([CAPTURE], cabinet=nothing_held()).runs
    rows = [row for name, row in load_requirements().items() if "finish" in name or "usage" in name]
    assert judge([run], rows, jobs=2) == judge([run], rows)


def test_a_shelf_gives_back_what_was_put_down() -> None:
    shelf = Shelf()
    values = [{"a": [1, 1.0, True, None]}, b"x" * 100_000, "\ud800"]
    slips = [shelf.put(value, compressed=bool(at % 2)) for at, value in enumerate(values)]
    assert [shelf.fetch(slip) for slip in reversed(slips)] == values[::-1]


def test_as_much_is_at_hand_as_there_is_room_for() -> None:
    at_hand, fetched = AtHand(10), []

    def get(key: int, size: int) -> int:
        def fetch() -> int:
            fetched.append(key)
            return key

        return at_hand.get(Slip(key, size, compressed=False), size, fetch)

    for key in range(100):
        assert get(key, 4) == key
        assert len(at_hand) <= 2
    assert get(99, 4) == 99
    assert fetched == list(range(100))
    get(100, 1000)
    assert len(at_hand) == 1
