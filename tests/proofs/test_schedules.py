"""The enumeration of schedules: its scope, that the reference passes it, and that it finds what is wrong."""

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from proofs import schedules
from proofs.schedules import (
    KEYED_TOKENS,
    Batch,
    Lives,
    ScheduledRequest,
    alone,
    attached,
    compositions,
    keyed,
    run,
    run_reference,
    scope,
    size_of,
    together,
    written,
)

from tokenwire_engine.schedule import Key, Schedule, parse_schedule
from tokenwire_reference.core.output_streamer import OutputStreamer
from tokenwire_reference.doors.reader import Delivery, Reader


def test_the_scope_is_all_of_it() -> None:
    assert [len(list(compositions(tokens))) for tokens in range(1, 7)] == [1, 2, 4, 8, 16, 32]
    stories = len(schedules.stories())
    held = sum(len(steps) for tokens in range(1, 7) for steps in compositions(tokens))
    assert len(set(alone(6))) == held * 2 * 2 * stories == 3840
    assert len(set(together(6, 3, each=False))) == 129 + 111
    each = list(together(2, 3, each=True))
    assert len({frozenset(map(str, batch)) for batch in each}) <= len(each) == 3 * 4 // 2 + 3 * 4 * 5 // 6
    keys = len(schedules.KEYS)
    assert len(set(keyed(KEYED_TOKENS, 1))) == (1 + 2 + 4 + 8) * 2 * (keys - 1)
    assert len(set(keyed(2, 2))) == (1 + 2) * 2 * (keys - 1) + keys * (keys - 1)
    assert len(set(keyed(3, 3))) == (1 + 2 + 4) * 2 * (keys - 1) + 5 * keys * (keys - 1) + keys**3 - keys


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(),
        Schedule(steps=(2, 1), hold=3, late=True),
        Schedule(join=(2, "pair"), kv="peer-1"),
        Schedule(info=(Key("a"), Key("b", first=3, by_step=True))),
    ],
)
def test_a_schedule_is_read_as_it_is_written(schedule: Schedule) -> None:
    assert parse_schedule(written(schedule)) == schedule


@pytest.mark.parametrize("name", ["plain", "character", "stop", "stops", "border"])
def test_each_story_has_as_many_tokens_as_the_scope(name: str) -> None:
    story = schedules.stories()[name]
    assert len(story.ids) == schedules.TOKENS
    text = schedules.words().text(story.ids)
    assert all(stop in text for stop in story.stop)
    assert "\ufffd" not in text


def test_the_reference_delivers_all_of_a_small_scope() -> None:
    asked, requests, failed = run_reference(scope(4, 2, each=False))
    assert failed == {}
    assert requests > asked == len(list(scope(4, 2, each=False))) * 8


def planted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, change: Any) -> dict[str, Any]:
    monkeypatch.setattr(owner, name, change)
    return run_reference(scope(4, 2, each=False))[2]


def test_a_reader_that_loses_a_token_of_a_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Reader.take

    def losing(self: Reader, delivery: Delivery) -> Any:
        emission = take(self, delivery)
        if len(emission.output_ids) > 2:
            emission = replace(emission, output_ids=emission.output_ids[1:])
        return emission

    failed = planted(monkeypatch, Reader, "take", losing)
    assert "ids" in failed
    batch, _, _ = failed["ids"]
    assert len(batch) == 1
    assert batch[0].tokens == 3, "the smallest that has three tokens in a row"


def test_a_streamer_that_shows_the_head_of_a_stop_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = OutputStreamer.stream

    def hasty(self: OutputStreamer, requests: Any) -> Any:
        requests = list(requests)
        for request in requests:
            request.held_back = False
        return stream(self, requests)

    assert "text so far" in planted(monkeypatch, OutputStreamer, "stream", hasty)


@pytest.mark.parametrize(
    ("series", "wrong"),
    [
        ([(range(3), {"a": [None, "a1", "a2"]})], False),
        ([(range(1), {}), (range(1, 3), {"a": ["a1", "a2"]}), (range(3, 3), {"a": []})], False),
        ([(range(1), {}), (range(1, 3), {"a": ["a2"]})], True),
        ([(range(3), {"a": ["a1", "a2"]})], True),
        ([(range(3), {"a": [None, "a1", "a2"], "b": [None] * 3})], True),
        ([(range(3), {})], True),
    ],
)
def test_values_are_beside_their_outputs_and_of_no_other_request(series: Any, *, wrong: bool) -> None:
    case = ScheduledRequest("plain", Schedule(info=(Key("a", first=1), Key("z", first=3))), 3, stream=True)
    assert bool(list(attached(case, series))) is wrong


def test_a_reference_that_shows_a_late_key_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    append = schedules.Request.append

    def unpadded(self: Any, token: int, entries: Any, values: Any) -> None:
        known = set(self.series)
        append(self, token, entries, values)
        self.series |= {name: self.series[name][-1:] for name in self.series.keys() - known}

    failed = planted(monkeypatch, schedules.Request, "append", unpadded)
    assert set(failed) == {"keys"}
    ((case,), _, _) = failed["keys"]
    assert case.schedule.info == (Key("a", first=1),)


@dataclass
class Mortal:
    """A front end that dies of two requests of a token each, and keeps what was asked at once."""

    keys: bool = True
    is_dead: bool = False
    running: int = 0

    async def shows_keys(self) -> bool:
        return self.keys

    async def failures(self, batch: Batch) -> list[tuple[str, str]]:
        self.running += 1
        await asyncio.sleep(0)
        assert self.running == 1 or not schedules._has_keys(batch), "one with keys is asked alone"
        self.is_dead |= [case.tokens for case in batch] == [1, 1]
        self.running -= 1
        return [(schedules._CUT, "cut")] if self.is_dead else []


@dataclass
class Reborn(Lives):
    """A mortal front end."""

    keys: bool = True
    front_end: Any = None

    async def begin(self) -> Any:
        self.front_end = Mortal(self.keys)
        return self.front_end


def test_a_front_end_that_dies_is_started_again_and_every_killer_is_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(schedules, "Lives", Reborn)
    batches = list(scope(2, 3, each=False))
    killers = [batch for batch in batches if [case.tokens for case in batch] == [1, 1]]
    asked, requests, failed = asyncio.run(run(nullcontext, batches, most=100))
    assert (asked, requests) == (len(batches), sum(map(len, batches)))
    assert set(failed) == {schedules._KILLS}
    smallest, message, times = failed[schedules._KILLS]
    assert times == len(killers) == 1 + len(schedules.KEYS) * (len(schedules.KEYS) - 1)
    assert smallest == killers[0]
    assert message == "cut"
    assert "; 0 schedules were not sent" in capsys.readouterr().out


def test_schedules_with_keys_are_left_out_where_no_key_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(schedules, "Lives", partial(Reborn, keys=False))
    batches = list(scope(1, 1, each=False))
    asked, _, failed = asyncio.run(run(nullcontext, batches))
    assert asked == len(list(alone(1)))
    assert not failed
    left = len(batches) - asked
    assert left > 0
    assert f"shows no customized_info; {left} schedules need it" in capsys.readouterr().out


def test_after_too_many_deaths_the_rest_is_left_out_and_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(schedules, "Lives", Reborn)
    batches = list(scope(2, 3, each=False))
    asked, _, failed = asyncio.run(run(nullcontext, batches, most=2))
    left = len(batches) - asked
    assert 0 < left < len(batches)
    assert failed[schedules._KILLS][2] == 2, "the first death is of one of many"
    assert f"died 3 times; {left} schedules were not sent" in capsys.readouterr().out


def test_a_failing_batch_is_shrunk_to_its_smallest() -> None:
    async def broken(batch: Batch) -> dict[str, str]:
        """Fail where two steps of one request bring four tokens or more."""
        wrong = any(len(case.schedule.steps) > 1 and case.tokens >= 4 for case in batch)
        return {"ids": "one is lost"} if wrong else {}

    large: Batch = (
        ScheduledRequest(
            "stop", Schedule(steps=(1, 1, 2, 1), hold=3, late=True, info=(Key("a"),)), 5, stream=True
        ),
        ScheduledRequest("plain", Schedule(steps=(2,)), 2, stream=False),
    )
    shrunk, message = asyncio.run(schedules._shrunk(broken, "ids", large, ""))
    assert message == "one is lost"
    (case,) = shrunk
    assert (case.story, case.tokens, len(case.schedule.steps)) == ("plain", 4, 2)
    assert (case.schedule.hold, case.schedule.late, case.schedule.info) == (1, False, ())
    assert size_of(shrunk) < size_of(large)
