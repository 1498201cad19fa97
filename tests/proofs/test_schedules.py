"""The enumeration of schedules: its scope, that the reference passes it, and that it finds what is wrong."""

import asyncio
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from proofs import schedules
from proofs.schedules import (
    Batch,
    ScheduledRequest,
    alone,
    compositions,
    run_reference,
    scope,
    size_of,
    together,
)

from tokenwire_engine.schedule import Schedule
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


class Broken(schedules.FrontEnd):
    """Fails where two steps of one request bring four tokens or more."""

    async def failures(self, batch: Batch) -> list[tuple[str, str]]:
        wrong = any(len(case.schedule.steps) > 1 and case.tokens >= 4 for case in batch)
        return [("ids", "one is lost")] if wrong else []


def test_a_failing_batch_is_shrunk_to_its_smallest() -> None:
    broken = Broken(None, None, "", None, count())  # type: ignore[arg-type]
    large: Batch = (
        ScheduledRequest("stop", Schedule(steps=(1, 1, 2, 1), hold=3, late=True), 5, stream=True),
        ScheduledRequest("plain", Schedule(steps=(2,)), 2, stream=False),
    )
    shrunk, message = asyncio.run(schedules._shrunk(broken, "ids", large, ""))
    assert message == "one is lost"
    (case,) = shrunk
    assert (case.story, case.tokens, len(case.schedule.steps)) == ("plain", 4, 2)
    assert (case.schedule.hold, case.schedule.late) == (1, False)
    assert size_of(shrunk) < size_of(large)
