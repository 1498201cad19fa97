"""Sessions: where the history of a turn is known, and where nobody can tell it."""

from __future__ import annotations

import pytest
from session_pairs import APPENDING, FIRST, INTERRUPTED, NEW, appended, spelled, turn
from stream_builder import IDS, PROMPT, change

from tokenwire.checks.check import CHECKS, Target
from tokenwire.dialects.dialect import load_dialects
from tokenwire.record import Finish, Stream
from tokenwire.wire.exchange import HttpRequest


def observed(requirement: str, *streams: Stream) -> list[bool]:
    on_run = CHECKS[requirement].on_run
    assert on_run is not None
    return [seen.holds for seen in on_run(streams, Target())]


@pytest.mark.parametrize(("offset", "due"), [(2, 4), (5, 7), (9999, len(PROMPT) + len(IDS) + len(NEW))])
def test_so_many_ids_of_the_history_stand_before_a_turn(offset: int, due: int) -> None:
    right, wrong = (turn(offset=offset, prompt_tokens=count) for count in (due, due + 1))
    assert observed("turns-carry-their-history", FIRST, right) == [True]
    assert observed("turns-carry-their-history", FIRST, wrong) == [False]


@pytest.mark.parametrize(
    ("first", "why"),
    [
        ([], "nobody saw the turn that it names"),
        ([change(FIRST, finish=Finish("stop", matched=2))], "its end may be left out"),
        ([change(FIRST, output_ids=None)], "its ids are not told"),
    ],
)
def test_a_history_that_is_not_known_says_nothing(first: list[Stream], why: str) -> None:
    assert observed("turns-carry-their-history", *first, turn(prompt_tokens=2)) == [], why


def test_a_turn_goes_on_from_a_turn() -> None:
    third = turn(prompt_tokens=len(PROMPT) + 2 * len(IDS) + 2 * len(NEW))
    third = change(third, details={"request_id": "r-4"})
    asked = third.asked.turn
    assert asked is not None
    third.asked.__dict__["turn"] = asked._replace(after="r-2")
    assert observed("turns-carry-their-history", FIRST, turn(), third) == [True, True]


def test_only_the_same_history_is_compared() -> None:
    other = change(spelled(IDS[::-1]))
    other.asked.__dict__["input_ids"] = ((*PROMPT, *IDS, 9),)
    assert observed("turns-answer-as-their-history", FIRST, turn(), other) == []


@pytest.mark.parametrize(
    "more", [{"replace": True}, {"drop_previous_output": True}, {"offset": "x"}, {"rid": 5}]
)
def test_a_turn_that_edits_its_history_is_not_followed(more: dict[str, object]) -> None:
    body = {"input_ids": [1, 2], "session_params": {"id": "s", "rid": "a", **more}}
    asked = load_dialects()["sglang-generate"].read_asked(HttpRequest("POST", "/generate", body))
    assert (asked.turn, asked.input_ids, asked.key) == (None, None, "")


def taken_back(*streams: Stream, target: Target = APPENDING) -> list[bool]:
    on_run = CHECKS["aborted-turn-is-taken-back"].on_run
    assert on_run is not None
    return [seen.holds for seen in on_run(streams, target)]


def test_a_server_whose_turns_begin_anew_has_no_such_sessions() -> None:
    anew = (appended(1, 0), appended(2, 0), appended(3, 0, finish="abort"), appended(4, 0))
    assert taken_back(*anew) == []
    assert taken_back(appended(1, 0), appended(3, 0, finish="abort"), appended(4, 9)) == []


def test_a_session_that_was_not_opened_so_says_nothing() -> None:
    wrong = (*INTERRUPTED, appended(4, 1))
    assert taken_back(*wrong) == [False]
    assert taken_back(*wrong, target=Target()) == []


def test_turns_at_once_are_not_followed() -> None:
    assert taken_back(*INTERRUPTED, appended(3.2, 1)) == []


def test_a_turn_that_names_null_may_continue_any_turn() -> None:
    body = {"input_ids": [1, 2], "session_params": {"id": "s", "rid": None}}
    asked = load_dialects()["sglang-generate"].read_asked(HttpRequest("POST", "/generate", body))
    assert (asked.turn, asked.input_ids, asked.key) == (("", 0, (1, 2), "s"), None, "")
