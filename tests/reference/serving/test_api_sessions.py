"""Sessions: what stands before the prompt of a turn, and which turns are refused."""

from __future__ import annotations

import pytest

from tokenwire_reference.core.request import FinishReason, Request, SamplingParams
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.sessions import Sessions

PROMPT = (5, 6, 7)


def kept(sessions: Sessions, rid: str = "a", *, tokens: int = 2) -> Request:
    request = Request(rid, PROMPT, SamplingParams(max_new_tokens=tokens))
    sessions.add("s", request)
    request.output_ids.extend([8, 9])
    request.finish = FinishReason("length")
    return request


@pytest.fixture
def sessions() -> Sessions:
    sessions = Sessions()
    assert sessions.open("s")
    return sessions


@pytest.mark.parametrize(
    ("offset", "due"), [(None, (5, 6, 7, 8, 9)), (0, (5, 6, 7, 8, 9)), (2, (5, 6)), (99, (5, 6, 7, 8, 9))]
)
def test_prompt_and_output_of_a_turn_stand_before_the_next(sessions, offset, due):
    kept(sessions)
    assert sessions.history({"id": "s", "rid": "a", "offset": offset}) == due
    assert sessions.history({"id": "s"}) == ()


@pytest.mark.parametrize("asked", [{"id": "t"}, {"id": "s", "rid": "b"}, {"id": None}])
def test_what_is_not_known_is_refused(sessions, asked):
    kept(sessions)
    with pytest.raises(RefusalError, match="session"):
        sessions.history(asked)


def test_a_turn_that_runs_has_no_output_yet(sessions):
    kept(sessions).finish = None
    with pytest.raises(RefusalError, match="'a'"):
        sessions.history({"id": "s", "rid": "a"})


def test_a_session_is_opened_once_and_forgotten_when_it_is_closed(sessions):
    kept(sessions)
    assert not sessions.open("s")
    sessions.close("s")
    assert sessions.open("s")
    with pytest.raises(RefusalError):
        sessions.history({"id": "s", "rid": "a"})


def test_the_oldest_turns_make_room(sessions):
    kept(sessions, "a", tokens=1 << 19)
    kept(sessions, "b", tokens=1 << 19)
    assert sessions.history({"id": "s", "rid": "b"})
    with pytest.raises(RefusalError):
        sessions.history({"id": "s", "rid": "a"})


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"input_ids": [5], "session_params": {"id": "t"}}, "session id t does not exist"),
        ({"input_ids": [[5], [6]], "session_params": {"id": "s"}}, "batch"),
    ],
)
def test_a_turn_is_one_prompt_of_an_open_session(answer, scripted_engine, asked, words):
    refused = answer(scripted_engine([[8]]), "/generate", asked)
    assert (refused.status_code, words in refused.json()["error"]["message"]) == (400, True)


def test_a_turn_whose_id_is_used_again_counts_once(sessions):
    """Else the tokens of turns that are gone count for ever, and in the end no turn can be kept."""
    for _ in range(3):
        request = kept(sessions, tokens=400_000)
    assert sessions.history({"id": "s", "rid": "a"}) == (*request.prompt_token_ids, *request.output_ids)


def test_a_turn_of_a_streaming_session_continues_the_latest_that_was_not_aborted():
    sessions = Sessions()
    assert sessions.open("s", appends=True)
    asked = {"id": "s", "rid": None}
    assert sessions.history(asked) == ()
    kept(sessions, "a")
    assert sessions.history(asked) == (*PROMPT, 8, 9)
    kept(sessions, "b").finish = FinishReason("abort", message="Aborted")
    assert sessions.history(asked) == (*PROMPT, 8, 9)
    kept(sessions, "c").finish = None
    with pytest.raises(RefusalError, match="active request"):
        sessions.history(asked)


def test_a_turn_of_a_streaming_session_only_appends():
    sessions = Sessions()
    assert sessions.open("s", appends=True)
    for more in ({"offset": 1}, {"replace": True}, {"drop_previous_output": True}):
        with pytest.raises(RefusalError, match="only appends"):
            sessions.history({"id": "s", "rid": None, **more})
